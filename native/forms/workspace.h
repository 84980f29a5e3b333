// Scratch memory: many arrays in one aligned allocation.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace FM_LEVEL {

class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  ~Workspace() { free(base); }

  // take_arrays() takes every array by take(). It is called twice: to measure, and to place. False if out of memory.
  template <class F>
  bool allocate(const F& take_arrays) {
    take_arrays();
    base = next = (char*)aligned_alloc(64, size + 64);
    if (base) take_arrays();
    return base != nullptr;
  }
  template <class F>
  bool allocate_zeros(const F& take_arrays) {
    const bool ok = allocate(take_arrays);
    if (ok) memset(base, 0, size + 64);
    return ok;
  }
  template <class T>
  T* take(int64_t n) {
    const size_t bytes = (n * sizeof(T) + 63) / 64 * 64 + 64;  // 64 more: vector loads may run past the end
    if (!base) {
      size += bytes;
      return nullptr;
    }
    T* p = (T*)next;
    next += bytes;
    return p;
  }

 private:
  char *base = nullptr, *next = nullptr;
  size_t size = 0;
};

}  // namespace FM_LEVEL
