// The instruction set levels: the name of each, and whether this processor runs it.
#pragma once

struct FmLevel {
  const char* name;
  bool runs;
};

#if defined(__x86_64__)
inline FmLevel describe_v2() { return {"x86-64-v2", __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt")}; }
inline FmLevel describe_v3() {
  return {"x86-64-v3", describe_v2().runs && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c")};
}
inline FmLevel describe_v4() {
  return {"x86-64-v4", describe_v3().runs && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                           __builtin_cpu_supports("avx512cd")};
}
#if defined(FM_KNOWS_AVX512BF16)
inline FmLevel describe_v4_bf16() { return {"x86-64-v4-bf16", describe_v4().runs && __builtin_cpu_supports("avx512bf16")}; }
#endif
#endif
inline FmLevel describe_generic() { return {"generic", true}; }
