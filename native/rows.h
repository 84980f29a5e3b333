// Rows of tokens: conversion from and to the tensors' types, standardization and its gradient.
#pragma once
#include "api.h"
#include "shuffle.h"
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

// `count` rows that lie `stride` apart. The usual case, no conversion, is a loop of vector copies.
template <class T>
void load_rows(const void* from, int64_t type, int64_t offset, int64_t stride, int count, int n, T* to, int64_t pitch) {
  constexpr int L = LANES<T>;
  const bool same = type == (sizeof(T) == sizeof(float) ? FM_F32 : FM_F64);
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

FM_INLINE float square_root(float x) { return __builtin_sqrtf(x); }
FM_INLINE double square_root(double x) { return __builtin_sqrt(x); }

template <class T>
FM_INLINE T sum(const T* x, int n) {
  constexpr int L = LANES<T>;
  Vec<T> a{}, b{};
  int i = 0;
  for (; i + 2 * L <= n; i += 2 * L) a += load(x + i), b += load(x + i + L);
  for (; i + L <= n; i += L) a += load(x + i);
  T total = horizontal_sum<T>(a + b);
  for (; i < n; i++) total += x[i];
  return total;
}
template <class T>
FM_INLINE T dot(const T* x, const T* y, int n) {
  constexpr int L = LANES<T>;
  Vec<T> a{}, b{};
  int i = 0;
  for (; i + 2 * L <= n; i += 2 * L) a += load(x + i) * load(y + i), b += load(x + i + L) * load(y + i + L);
  for (; i + L <= n; i += L) a += load(x + i) * load(y + i);
  T total = horizontal_sum<T>(a + b);
  for (; i < n; i++) total += x[i] * y[i];
  return total;
}

template <class T>
FM_INLINE void multiply_row(T* x, T by, int n) {
  constexpr int L = LANES<T>;
  int i = 0;
  for (; i + L <= n; i += L) store(x + i, load(x + i) * by);
  for (; i < n; i++) x[i] *= by;
}

// Equations 5-6, in place, times `factor`, for rows of n channels; 1 / std goes to `rstd`. The first channel is taken off so
// that a constant token becomes exact zeros. LANES rows at a time: their sums, divisions and roots are then vectors too,
// where those of a single row are one long chain.
template <class T>
void standardize_rows(T* x, int64_t pitch, int count, int n, T eps, T factor, T* rstd) {
  constexpr int L = LANES<T>;
  for (int begin = 0; begin < count; begin += L) {
    const int rows = (int)least(L, count - begin);
    Vec<T> part[L];
    T mean[L], scale[L];
    for (int r = 0; r < L; r++) {
      part[r] = Vec<T>{};
      if (r >= rows) continue;
      T *row = x + (begin + r) * pitch, first = row[0], rest = 0;
      Vec<T> a{};
      int i = 0;
      for (; i + L <= n; i += L) {
        const Vec<T> y = load(row + i) - first;
        a += y;
        store(row + i, y);
      }
      for (; i < n; i++) rest += row[i] -= first;
      a[0] += rest;
      part[r] = a;
    }
    store(mean, sums<T>(part) / (T)n);
    for (int r = 0; r < L; r++) {
      part[r] = Vec<T>{};
      if (r >= rows) continue;
      T *row = x + (begin + r) * pitch, rest = 0;
      const T middle = mean[r];
      Vec<T> a{};
      int i = 0;
      for (; i + L <= n; i += L) {
        const Vec<T> y = load(row + i) - middle;
        a += y * y;
        store(row + i, y);
      }
      for (; i < n; i++) row[i] -= middle, rest += row[i] * row[i];
      a[0] += rest;
      part[r] = a;
    }
    store(scale, sums<T>(part) / (T)n + eps);
    for (int r = 0; r < L; r++) scale[r] = 1 / square_root(scale[r]);
    for (int r = 0; r < rows; r++) {
      rstd[begin + r] = scale[r];
      multiply_row(x + (begin + r) * pitch, scale[r] * factor, n);
    }
  }
}
template <class T>
T standardize(T* x, int n, T eps, T factor) {
  T rstd;
  standardize_rows(x, n, 1, n, eps, factor, &rstd);
  return rstd;
}

// In place: the gradients of raw tokens from those of the standardized ones, x.
template <class T>
void standardize_rows_vjp(T* d, int64_t d_pitch, const T* x, int64_t x_pitch, const T* rstd, int count, int n) {
  constexpr int L = LANES<T>;
  for (int begin = 0; begin < count; begin += L) {
    const int rows = (int)least(L, count - begin);
    Vec<T> total[L], along[L];
    T mean[L], slope[L];
    for (int r = 0; r < L; r++) {
      total[r] = along[r] = Vec<T>{};
      if (r >= rows) continue;
      const T *dr = d + (begin + r) * d_pitch, *xr = x + (begin + r) * x_pitch;
      Vec<T> a{}, b{};
      int i = 0;
      for (; i + L <= n; i += L) a += load(dr + i), b += load(dr + i) * load(xr + i);
      for (; i < n; i++) a[0] += dr[i], b[0] += dr[i] * xr[i];
      total[r] = a, along[r] = b;
    }
    store(mean, sums<T>(total) / (T)n);
    store(slope, sums<T>(along) / (T)n);
    for (int r = 0; r < rows; r++) {
      T* dr = d + (begin + r) * d_pitch;
      const T *xr = x + (begin + r) * x_pitch, middle = mean[r], lean = slope[r], scale = rstd[begin + r];
      int i = 0;
      for (; i + L <= n; i += L) store(dr + i, (load(dr + i) - middle - load(xr + i) * lean) * scale);
      for (; i < n; i++) dr[i] = (dr[i] - middle - xr[i] * lean) * scale;
    }
  }
}

}  // namespace FM_LEVEL
