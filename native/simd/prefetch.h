// Prefetches rows of tensors a few at a time while the arithmetic units compute: loading a chunk all at once would leave first
// the units and then the memory idle.
#pragma once
#include <stdint.h>

#include "simd/vec.h"

namespace FM_LEVEL {

struct Prefetcher {
  static constexpr int MAX_TENSORS = 5, LINE = 64;
  struct {
    const char* at;
    int64_t stride;
    int bytes;
  } tensors[MAX_TENSORS];
  int count = 0, row = 0, rows = 0;

  void start(int64_t n) { count = row = 0, rows = (int)max(0, n); }
  void add(const void* at, int64_t stride, int64_t bytes) { tensors[count++] = {(const char*)at, stride, (int)bytes}; }
  // One of `parts` equal parts of the rows.
  inline __attribute__((always_inline)) void prefetch_part(int parts) {
    if (row >= rows) return;
    const int part = (int)min(rows - row, (rows + parts - 1) / parts);
    row += part;
    for (int t = 0; t < count; t++) {
      auto& tensor = tensors[t];
      for (int r = 0; r < part; r++, tensor.at += tensor.stride)
        for (int b = 0; b < tensor.bytes; b += LINE) __builtin_prefetch(tensor.at + b, 0, 2);
    }
  }
};

}  // namespace FM_LEVEL
