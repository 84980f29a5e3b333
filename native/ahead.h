// Rows of tensors that will be needed soon, asked of the memory bit by bit while the units compute: a chunk that is loaded
// all at once would wait for the memory, and the memory would then wait for the chunk.
#pragma once
#include <stdint.h>

#include "vec.h"

namespace FM_LEVEL {

struct Ahead {
  static constexpr int MOST = 5, LINE = 64;
  struct {
    const char* at;
    int64_t stride;
    int bytes;
  } tensors[MOST];
  int count = 0, row = 0, rows = 0;

  void start(int64_t n) { count = row = 0, rows = (int)most(0, n); }
  void add(const void* at, int64_t stride, int64_t bytes) { tensors[count++] = {(const char*)at, stride, (int)bytes}; }
  // One of `times` equal parts.
  inline __attribute__((always_inline)) void some(int times) {
    if (row >= rows) return;
    const int part = (int)least(rows - row, (rows + times - 1) / times);
    row += part;
    for (int t = 0; t < count; t++) {
      auto& tensor = tensors[t];
      for (int r = 0; r < part; r++, tensor.at += tensor.stride)
        for (int b = 0; b < tensor.bytes; b += LINE) __builtin_prefetch(tensor.at + b, 0, 2);
    }
  }
};

}  // namespace FM_LEVEL
