// Rows of tokens: conversion from and to the tensors' types, standardization and its gradient, transposition.
#pragma once
#include "api.h"
#include "vec.h"
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

// Multiplying by a power of two lets the hardware do subnormals and rounding.
FM_INLINE float from_f16(uint16_t x) {
  const uint32_t sign = (uint32_t)(x & 0x8000) << 16, rest = (uint32_t)(x & 0x7fff) << 13;
  const float finite = bits_to_float(rest) * bits_to_float(0x77800000);  // 2^112
  const float value = rest >= 0x7c00u << 13 ? bits_to_float(0x7f800000 | rest) : finite;
  return bits_to_float(float_to_bits(value) | sign);
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

template <class T>
void load_row(const void* from, int64_t type, int64_t offset, int n, T* to) {
  if (type == FM_F32) {
    const float* p = (const float*)from + offset;
    for (int i = 0; i < n; i++) to[i] = (T)p[i];
  } else if (type == FM_F64) {
    const double* p = (const double*)from + offset;
    for (int i = 0; i < n; i++) to[i] = (T)p[i];
  } else if (type == FM_BF16) {
    const uint16_t* p = (const uint16_t*)from + offset;
    for (int i = 0; i < n; i++) to[i] = (T)from_bf16(p[i]);
  } else {
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
void store_row(const T* from, int n, void* to, int64_t type, int64_t offset) {
  if (type == FM_F32) {
    float* p = (float*)to + offset;
    for (int i = 0; i < n; i++) p[i] = (float)from[i];
  } else if (type == FM_F64) {
    double* p = (double*)to + offset;
    for (int i = 0; i < n; i++) p[i] = (double)from[i];
  } else if (type == FM_BF16) {
    uint16_t* p = (uint16_t*)to + offset;
    for (int i = 0; i < n; i++) p[i] = to_bf16((float)from[i]);
  } else {
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

template <class T>
T sum(const T* x, int n) {
  constexpr int L = LANES<T>;
  Vec<T> a{};
  int i = 0;
  for (; i + L <= n; i += L) a += load(x + i);
  T total = horizontal_sum<T>(a);
  for (; i < n; i++) total += x[i];
  return total;
}
template <class T>
T dot(const T* x, const T* y, int n) {
  constexpr int L = LANES<T>;
  Vec<T> a{};
  int i = 0;
  for (; i + L <= n; i += L) a += load(x + i) * load(y + i);
  T total = horizontal_sum<T>(a);
  for (; i < n; i++) total += x[i] * y[i];
  return total;
}
FM_INLINE float square_root(float x) { return __builtin_sqrtf(x); }
FM_INLINE double square_root(double x) { return __builtin_sqrt(x); }

// Equations 5-6, in place. Returns 1 / std. The first channel is taken off so that a constant token becomes exact zeros.
template <class T>
T standardize(T* x, int n, T eps) {
  const T first = x[0];
  for (int i = 0; i < n; i++) x[i] -= first;
  const T mean = sum(x, n) / n;
  for (int i = 0; i < n; i++) x[i] -= mean;
  const T rstd = 1 / square_root(dot(x, x, n) / n + eps);
  for (int i = 0; i < n; i++) x[i] *= rstd;
  return rstd;
}

// In place: the gradient of the raw token from that of the standardized one, x.
template <class T>
void standardize_vjp(T* d, const T* x, T rstd, int n) {
  const T mean = sum(d, n) / n, along = dot(d, x, n) / n;
  for (int i = 0; i < n; i++) d[i] = (d[i] - mean - x[i] * along) * rstd;
}

// [WIDE tokens][n] <-> [n][WIDE tokens]
template <class T>
void to_columns(const T* rows, int64_t pitch, int n, T* out) {
  constexpr int W = WIDE<T>;
  for (int i = 0; i < n; i++)
    for (int w = 0; w < W; w++) out[i * W + w] = rows[w * pitch + i];
}
template <class T>
void to_rows(const T* columns, int n, T* out, int64_t pitch) {
  constexpr int W = WIDE<T>;
  for (int w = 0; w < W; w++)
    for (int i = 0; i < n; i++) out[w * pitch + i] = columns[i * W + w];
}

}  // namespace FM_LEVEL
