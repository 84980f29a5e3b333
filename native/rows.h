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

template <class T>
constexpr int64_t type_of() {
  return sizeof(T) == sizeof(float) ? FM_F32 : FM_F64;
}

// `count` rows that lie `stride` apart. The usual case, no conversion, is a loop of vector copies.
template <class T>
void load_rows(const void* from, int64_t type, int64_t offset, int64_t stride, int count, int n, T* to, int64_t pitch) {
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

// f(Int<V>) for rows of V whole vectors, the usual head dimensions, whose loops are then unrolled; Int<0> for all others.
template <class T, class F>
FM_INLINE void with_vectors(int n, const F& f) {
  constexpr int L = LANES<T>;
  if (n == 4 * L)
    f(Int<4>{});
  else if (n == 8 * L)
    f(Int<8>{});
  else if (n == 16 * L)
    f(Int<16>{});
  else
    f(Int<0>{});
}
// Calls vector(i) for the whole vectors of a row of V, or of n channels, and single(i) for the channels behind them.
template <class T, int V, class F, class G>
FM_INLINE void each_vector(int n, const F& vector, const G& single) {
  constexpr int L = LANES<T>;
  if constexpr (V > 0) {
#pragma GCC unroll 16
    for (int i = 0; i < V; i++) vector(i * L);
  } else {
    int i = 0;
    for (; i + L <= n; i += L) vector(i);
    for (; i < n; i++) single(i);
  }
}

// Equations 5-6 for rows of n channels, times `factor`: `from` to x, which may be the same; 1 / std goes to `rstd`. The first
// channel is taken off so that a constant token becomes exact zeros. LANES rows at a time share vectors of sums, divisions and
// roots, and several such groups go side by side: those of a single row, or group, are one long chain.
template <class T>
constexpr int BATCH = 4 * LANES<T>;
template <class T, int V>
FM_INLINE void standardize_batch(const T* from, int64_t stride, T* x, int64_t pitch, int rows, int n, T eps, T factor,
                                 T* rstd) {
  constexpr int L = LANES<T>;
  Vec<T> part[BATCH<T>];
  T mean[BATCH<T>], scale[BATCH<T>];
  for (int r = rows; r < round_up(rows, L); r++) part[r] = Vec<T>{};
  for (int r = 0; r < rows; r++) {
    const T* in = from + r * stride;
    T *row = x + r * pitch, rest = 0;
    const T first = in[0];
    Vec<T> a{};
    each_vector<T, V>(
        n,
        [&](int i) __attribute__((always_inline)) {
          const Vec<T> y = load(in + i) - first;
          a += y;
          store(row + i, y);
        },
        [&](int i) __attribute__((always_inline)) { rest += row[i] = in[i] - first; });
    if (V == 0) a[0] += rest;
    part[r] = a;
  }
  for (int r = 0; r < rows; r += L) store(mean + r, sums<T>(part + r) / (T)n);
  for (int r = 0; r < rows; r++) {
    const T *row = x + r * pitch, middle = mean[r];
    T rest = 0;
    Vec<T> a{};
    each_vector<T, V>(
        n,
        [&](int i) __attribute__((always_inline)) {
          const Vec<T> y = load(row + i) - middle;
          a += y * y;
        },
        [&](int i) __attribute__((always_inline)) { rest += (row[i] - middle) * (row[i] - middle); });
    if (V == 0) a[0] += rest;
    part[r] = a;
  }
  for (int r = 0; r < rows; r += L) {
    store(scale + r, sums<T>(part + r) / (T)n + eps);
#pragma GCC unroll 1  // a loop becomes vector roots, lines one after the other do not
    for (int i = r; i < r + L; i++) scale[i] = 1 / square_root(scale[i]);
  }
  for (int r = 0; r < rows; r++) {
    T* row = x + r * pitch;
    const T middle = mean[r], by = scale[r] * factor;
    rstd[r] = scale[r];
    each_vector<T, V>(
        n, [&](int i) __attribute__((always_inline)) { store(row + i, (load(row + i) - middle) * by); },
        [&](int i) __attribute__((always_inline)) { row[i] = (row[i] - middle) * by; });
  }
}
template <class T>
void standardize_rows(const T* from, int64_t stride, T* x, int64_t pitch, int count, int n, T eps, T factor, T* rstd) {
  with_vectors<T>(n, [&](auto V) __attribute__((always_inline)) {
    for (int r = 0; r < count; r += BATCH<T>)
      standardize_batch<T, decltype(V)::value>(from + r * stride, stride, x + r * pitch, pitch,
                                               (int)least(BATCH<T>, count - r), n, eps, factor, rstd + r);
  });
}
// Loads rows as load_rows, and standardizes them.
template <class T>
void load_standardized(const void* from, int64_t type, int64_t offset, int64_t stride, int count, int n, T* x, int64_t pitch,
                       T eps, T factor, T* rstd) {
  if (type == type_of<T>()) return standardize_rows((const T*)from + offset, stride, x, pitch, count, n, eps, factor, rstd);
  load_rows(from, type, offset, stride, count, n, x, pitch);
  standardize_rows((const T*)x, pitch, x, pitch, count, n, eps, factor, rstd);
}
template <class T>
T standardize(T* x, int n, T eps, T factor) {
  T rstd;
  standardize_rows((const T*)x, n, x, n, 1, n, eps, factor, &rstd);
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
