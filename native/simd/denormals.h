// Denormal numbers as zeros, in one thread and scope: processors take up to a hundred times as long for them.
#pragma once
#include <stdint.h>

namespace FM_LEVEL {

// From construction to destruction denormals that are read count as zeros and results become zeros; then the thread's mode is
// what it was. The asm statements name memory, so that no load or store moves out of the scope. Without effect on processors
// other than x86-64 and 64-bit ARM.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() {
    asm volatile("stmxcsr %0" : "=m"(before)::"memory");
    const uint32_t flushing = before | 0x8040;  // FTZ and DAZ
    asm volatile("ldmxcsr %0" ::"m"(flushing) : "memory");
  }
  ~FlushDenormals() { asm volatile("ldmxcsr %0" ::"m"(before) : "memory"); }

 private:
  uint32_t before;
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(before)::"memory");
    asm volatile("msr fpcr, %0" ::"r"(before | 1 << 24) : "memory");  // FZ
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" ::"r"(before) : "memory"); }

 private:
  uint64_t before;
#else
  FlushDenormals() {}
  ~FlushDenormals() {}

 public:
#endif
  FlushDenormals(const FlushDenormals&) = delete;
};

}  // namespace FM_LEVEL
