// Rows of tokens: conversion from and to the types of tensors.
#pragma once
#include "api.h"
#include "simd/vec.h"
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace FM_LEVEL {

FM_INLINE float bits_to_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
FM_INLINE uint32_t float_to_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

FM_INLINE float from_bf16(uint16_t x) { return bits_to_float((uint32_t)x << 16); }
FM_INLINE uint16_t to_bf16(float x) {
  const uint32_t bits = float_to_bits(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return (uint16_t)(x != x ? 0x7fc0 : rounded);
}

// A subnormal of f16 is a whole number of 2^-24. No step meets a denormal of fp32, which the kernels take for zero.
FM_INLINE float from_f16(uint16_t x) {
  const uint32_t sign = (uint32_t)(x & 0x8000) << 16, rest = (uint32_t)(x & 0x7fff) << 13;
  const float subnormal = (float)(x & 0x3ff) * 0x1p-24f;
  const uint32_t normal = rest >= 0x7c00u << 13 ? 0x7f800000 | rest : rest + 0x38000000;  // 112 more in the exponent
  return bits_to_float((rest < 0x400u << 13 ? float_to_bits(subnormal) : normal) | sign);
}
FM_INLINE uint16_t to_f16(float x) {
  const uint32_t bits = float_to_bits(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  uint32_t half;
  if (rest >= 0x7f800000)
    half = rest > 0x7f800000 ? 0x7e00 : 0x7c00;
  else if (rest < 0x38800000)  // subnormal: adding 0.5 puts the rounded bits at the bottom
    half = float_to_bits(bits_to_float(rest) + 0.5f) - 0x3f000000;
  else {
    half = (rest + 0xfff + (rest >> 13 & 1) - 0x38000000) >> 13;
    if (half > 0x7c00) half = 0x7c00;
  }
  return (uint16_t)(sign | half);
}

// The bytes of an element; 0 for what is no type. check.h has refused such a call before anything is loaded.
FM_INLINE int64_t size_of(int64_t type) {
  return type == FM_F64 ? 8 : type == FM_F32 ? 4 : type == FM_BF16 || type == FM_F16 ? 2 : 0;
}

// Returns whether all numbers of `count` rows of n, `pitch` apart, are finite. Reads nothing behind them.
template <class T>
bool rows_are_finite(const T* rows, int64_t pitch, int count, int n) {
  FM_REQUIRE(n >= 0 && (count <= 1 || pitch >= n));
  constexpr int L = LANES<T>;
  Vec<T> sums{};  // zeros, or NaN
  T rest = 0;
  for (int64_t r = 0; r < count; r++, rows += pitch) {
    int i = 0;
    for (; i + L <= n; i += L) sums += load(rows + i) * (T)0;
    for (; i < n; i++) rest += rows[i] * 0;
  }
  for (int i = 0; i < L; i++) rest += sums[i];
  return rest == 0;
}

// to[n] = n numbers of a type, from the element `offset` on.
template <class T>
void load_row(const void* from, int64_t type, int64_t offset, int n, T* to) {
  FM_REQUIRE(size_of(type) > 0 && (from || n <= 0));
  if (type == FM_F32) {
    const float* p = (const float*)from + offset;
    for (int i = 0; i < n; i++) to[i] = (T)p[i];
  } else if (type == FM_F64) {
    const double* p = (const double*)from + offset;
    for (int i = 0; i < n; i++) to[i] = (T)p[i];
  } else if (type == FM_BF16) {
    const uint16_t* p = (const uint16_t*)from + offset;
    for (int i = 0; i < n; i++) to[i] = (T)from_bf16(p[i]);
  } else if (type == FM_F16) {
    const uint16_t* p = (const uint16_t*)from + offset;
    int i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8) {
      float wide[8];
      _mm256_storeu_ps(wide, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + i))));
      for (int k = 0; k < 8; k++) to[i + k] = (T)wide[k];
    }
#endif
    for (; i < n; i++) to[i] = (T)from_f16(p[i]);
  }
}

template <class T>
constexpr int64_t type_of() {
  return sizeof(T) == sizeof(float) ? FM_F32 : FM_F64;
}

// `count` rows of n numbers of a tensor, `stride` elements apart, the first at the element `offset`.
struct TensorRows {
  const void* data;
  int64_t type, offset, stride;
  int count, n;
};

// to[count][n], rows `pitch` apart = rows of a tensor that lie `stride` apart, by strides of any sign. Writes nothing behind a
// row. The usual case, no conversion, is a loop of vector copies.
template <class T>
void load_rows(const void* from, int64_t type, int64_t offset, int64_t stride, int count, int n, T* to, int64_t pitch) {
  FM_REQUIRE(size_of(type) > 0 && (count <= 1 || pitch >= n));
  constexpr int L = LANES<T>;
  const bool same = type == type_of<T>();
  for (int r = 0; r < count; r++, offset += stride, to += pitch) {
    if (!same) {
      load_row(from, type, offset, n, to);
      continue;
    }
    const T* p = (const T*)from + offset;
    int i = 0;
    for (; i + L <= n; i += L) store(to + i, load(p + i));
    for (; i < n; i++) to[i] = p[i];
  }
}

// n numbers of a type, from the element `offset` on = from[n], rounded to the nearest, ties to even.
template <class T>
void store_row(const T* from, int n, void* to, int64_t type, int64_t offset) {
  FM_REQUIRE(size_of(type) > 0 && (to || n <= 0));
  if (type == FM_F32) {
    float* p = (float*)to + offset;
    for (int i = 0; i < n; i++) p[i] = (float)from[i];
  } else if (type == FM_F64) {
    double* p = (double*)to + offset;
    for (int i = 0; i < n; i++) p[i] = (double)from[i];
  } else if (type == FM_BF16) {
    uint16_t* p = (uint16_t*)to + offset;
    for (int i = 0; i < n; i++) p[i] = to_bf16((float)from[i]);
  } else if (type == FM_F16) {
    uint16_t* p = (uint16_t*)to + offset;
    int i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8) {
      float narrow[8];
      for (int k = 0; k < 8; k++) narrow[k] = (float)from[i + k];
      _mm_storeu_si128((__m128i*)(p + i), _mm256_cvtps_ph(_mm256_loadu_ps(narrow), _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    for (; i < n; i++) p[i] = to_f16((float)from[i]);
  }
}

}  // namespace FM_LEVEL
