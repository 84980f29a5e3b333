// Moves across the lanes of a vector: sums of a vector, and transposition of tokens and channels.
#pragma once
#include "simd/vec.h"

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define FM_SHUFFLES 1
#endif
#endif

namespace FM_LEVEL {

#if defined(FM_SHUFFLES)
template <int L>
struct Shuffle;
template <>
struct Shuffle<2> {
  template <class V>
  FM_INLINE V low(V a, V b) {
    return __builtin_shufflevector(a, b, 0, 2);
  }
  template <class V>
  FM_INLINE V high(V a, V b) {
    return __builtin_shufflevector(a, b, 1, 3);
  }
};
template <>
struct Shuffle<4> {
  template <class V>
  FM_INLINE V low(V a, V b) {
    return __builtin_shufflevector(a, b, 0, 4, 1, 5);
  }
  template <class V>
  FM_INLINE V high(V a, V b) {
    return __builtin_shufflevector(a, b, 2, 6, 3, 7);
  }
};
template <>
struct Shuffle<8> {
  template <class V>
  FM_INLINE V low(V a, V b) {
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  }
  template <class V>
  FM_INLINE V high(V a, V b) {
    return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
  }
};
template <>
struct Shuffle<16> {
  template <class V>
  FM_INLINE V low(V a, V b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  }
  template <class V>
  FM_INLINE V high(V a, V b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  }
};
#endif

template <class T>
FM_INLINE T horizontal_sum(Vec<T> x) {
#if defined(FM_SHUFFLES)
  // Interleaving with itself and adding the halves folds the vector until every lane holds the sum.
#pragma GCC unroll 4
  for (int n = LANES<T>; n > 1; n /= 2) x = Shuffle<LANES<T>>::low(x, x) + Shuffle<LANES<T>>::high(x, x);
  return x[0];
#else
  T total = 0;
  for (int i = 0; i < LANES<T>; i++) total += x[i];
  return total;
#endif
}

// In place: a[c][r] = a[r][c].
template <class T>
FM_INLINE void transpose(Vec<T> (&a)[LANES<T>]) {
  constexpr int L = LANES<T>;
  Vec<T> b[L];
#if defined(FM_SHUFFLES)
#pragma GCC unroll 4
  for (int n = L; n > 1; n /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < L / 2; i++) {
      b[2 * i] = Shuffle<L>::low(a[i], a[i + L / 2]);
      b[2 * i + 1] = Shuffle<L>::high(a[i], a[i + L / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < L; i++) a[i] = b[i];
  }
#else
  for (int r = 0; r < L; r++)
    for (int c = 0; c < L; c++) b[c][r] = a[r][c];
  for (int i = 0; i < L; i++) a[i] = b[i];
#endif
}

// The sums of LANES vectors, as one vector. Interleaving two vectors and adding the halves leaves half as many terms of each;
// pairs that lie half of the vectors apart end in the order of the vectors.
template <class T>
FM_INLINE Vec<T> sums(const Vec<T>* vectors) {
  constexpr int L = LANES<T>;
  Vec<T> a[L];
#pragma GCC unroll 16
  for (int i = 0; i < L; i++) a[i] = vectors[i];
#if defined(FM_SHUFFLES)
#pragma GCC unroll 4
  for (int n = L / 2; n > 0; n /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) a[i] = Shuffle<L>::low(a[i], a[i + n]) + Shuffle<L>::high(a[i], a[i + n]);
  return a[0];
#else
  transpose<T>(a);
  for (int n = L / 2; n > 0; n /= 2)
    for (int i = 0; i < n; i++) a[i] += a[i + n];
  return a[0];
#endif
}

// out[c][r] = in[r][c] * by[c] for LANES x LANES numbers; no `by`: as they are.
template <class T, bool Scaled>
FM_INLINE void transpose_square(const T* in, int64_t in_pitch, T* out, int64_t out_pitch, const T* by) {
  constexpr int L = LANES<T>;
  Vec<T> a[L];
#pragma GCC unroll 16
  for (int i = 0; i < L; i++) a[i] = Scaled ? load(in + i * in_pitch) * load(by) : load(in + i * in_pitch);
  transpose<T>(a);
#pragma GCC unroll 16
  for (int i = 0; i < L; i++) store(out + i * out_pitch, a[i]);
}

// [WIDE tokens][n] -> [n][WIDE tokens]
template <class T>
void transpose_to_channel_major(const T* rows, int64_t pitch, int n, T* out) {
  constexpr int W = WIDE<T>, L = LANES<T>;
  int i = 0;
  for (; i + L <= n; i += L)
    for (int w = 0; w < W; w += L)
      transpose_square<T, false>(rows + w * pitch + i, pitch, out + (int64_t)i * W + w, W, nullptr);
  for (; i < n; i++)
    for (int w = 0; w < W; w++) out[i * W + w] = rows[w * pitch + i];
}
// and back, each token times its own number if there are any
template <class T, bool Scaled = false>
void transpose_to_token_major(const T* columns, int n, T* out, int64_t pitch, const T* by = nullptr) {
  constexpr int W = WIDE<T>, L = LANES<T>;
  int i = 0;
  for (; i + L <= n; i += L)
    for (int w = 0; w < W; w += L)
      transpose_square<T, Scaled>(columns + (int64_t)i * W + w, W, out + w * pitch + i, pitch, by + (Scaled ? w : 0));
  for (; i < n; i++)
    for (int w = 0; w < W; w++) out[w * pitch + i] = Scaled ? columns[i * W + w] * by[w] : columns[i * W + w];
}

}  // namespace FM_LEVEL
