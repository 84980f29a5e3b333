// Rows of tokens: standardization and its gradient.
#pragma once
#include "simd/transpose.h"
#include "tiles/convert.h"

namespace FM_LEVEL {

FM_INLINE float square_root(float x) { return __builtin_sqrtf(x); }
FM_INLINE double square_root(double x) { return __builtin_sqrt(x); }

// A dot product as a vector whose lanes are to be added up.
template <class T>
FM_INLINE Vec<T> dot_lanes(const T* x, const T* y, int n) {
  constexpr int L = LANES<T>;
  Vec<T> a{}, b{};
  int i = 0;
  for (; i + 2 * L <= n; i += 2 * L) a += load(x + i) * load(y + i), b += load(x + i + L) * load(y + i + L);
  for (; i + L <= n; i += L) a += load(x + i) * load(y + i);
  a += b;
  for (; i < n; i++) a[0] += x[i] * y[i];
  return a;
}
template <class T>
FM_INLINE T dot(const T* x, const T* y, int n) {
  return horizontal_sum<T>(dot_lanes(x, y, n));
}

template <class T>
FM_INLINE void multiply_row(T* x, T by, int n) {
  constexpr int L = LANES<T>;
  int i = 0;
  for (; i + L <= n; i += L) store(x + i, load(x + i) * by);
  for (; i < n; i++) x[i] *= by;
}

template <class V, int N>
FM_INLINE V total(const V (&parts)[N]) {
  V sum = parts[0];
#pragma GCC unroll 4
  for (int i = 1; i < N; i++) sum += parts[i];
  return sum;
}

// f(Int<V>) for rows of V whole vectors, the usual head dimensions, whose loops are then unrolled; Int<0> for all others.
template <class T, class F>
FM_INLINE void with_vectors(int n, const F& f) {
  constexpr int L = LANES<T>;
  if (n == 2 * L)
    f(Int<2>{});
  else if (n == 4 * L)
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
// channel is taken off so that a constant token becomes exact zeros. Not `Centred`, the mean stays: 1 / rms in place of 1 /
// std. LANES rows at a time share vectors of sums, divisions and roots, and several such groups go side by side: those of a
// single row, or group, are one long chain.
template <class T>
constexpr int BATCH = 4 * LANES<T>;
template <class T, int V, bool Centred>
FM_INLINE void standardize_batch(const T* from, int64_t stride, T* x, int64_t pitch, int rows, int n, T eps, T factor,
                                 T* rstd) {
  FM_REQUIRE(0 < n && rows <= BATCH<T> && (rows <= 1 || pitch >= n));
  constexpr int L = LANES<T>;
  Vec<T> part[BATCH<T>];
  T mean[BATCH<T>], scale[BATCH<T>];
  for (int r = rows; r < round_up(rows, L); r++) part[r] = Vec<T>{};
  for (int r = 0; r < rows; r++) {
    const T* in = from + r * stride;
    T *row = x + r * pitch, rest = 0;
    const T first = Centred ? in[0] : 0;
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
  for (int r = 0; r < rows; r += L) store(mean + r, Centred ? sums<T>(part + r) / (T)n : Vec<T>{});
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
template <class T, bool Centred>
void standardize_rows(const T* from, int64_t stride, T* x, int64_t pitch, int count, int n, T eps, T factor, T* rstd) {
  with_vectors<T>(n, [&](auto V) __attribute__((always_inline)) {
    for (int r = 0; r < count; r += BATCH<T>)
      standardize_batch<T, decltype(V)::value, Centred>(from + r * stride, stride, x + r * pitch, pitch,
                                                        (int)min(BATCH<T>, count - r), n, eps, factor, rstd + r);
  });
}
// Above HUGE_STD the squares of a token come near to overflow, or have overflowed. Such a token is standardized again, from
// numbers multiplied by a power of two that brings any finite one into range; eps is nothing to it.
template <class T>
constexpr T HUGE_STD = (T)(sizeof(T) == sizeof(float) ? 1e15 : 1e150);
template <class T>
constexpr T SHRINK = (T)(sizeof(T) == sizeof(float) ? 0x1p-100 : 0x1p-600);
template <class T, bool Centred>
FM_NOINLINE void standardize_huge(const TensorRows& from, int row, T* x, T factor, T* rstd) {
  const int n = from.n;
  load_row(from.data, from.type, from.offset + row * from.stride, n, x);
  for (int i = 0; i < n; i++) x[i] *= SHRINK<T>;
  standardize_rows<T, Centred>((const T*)x, n, x, n, 1, n, (T)0, factor, rstd);
  *rstd *= SHRINK<T>;
}
// Loads rows as load_rows, and standardizes them.
template <class T, bool Centred>
void load_standardized(const TensorRows& from, T eps, T factor, T* x, int64_t pitch, T* rstd) {
  const int count = from.count, n = from.n;
  if (from.type == type_of<T>()) {
    standardize_rows<T, Centred>((const T*)from.data + from.offset, from.stride, x, pitch, count, n, eps, factor, rstd);
  } else {
    load_rows(from.data, from.type, from.offset, from.stride, count, n, x, pitch);
    standardize_rows<T, Centred>((const T*)x, pitch, x, pitch, count, n, eps, factor, rstd);
  }
  for (int r = 0; r < count; r++)
    if (!(rstd[r] >= 1 / HUGE_STD<T>)) standardize_huge<T, Centred>(from, r, x + r * pitch, factor, rstd + r);
}
// x[count][n], rows `pitch` apart = the rows, normalized by FmNormalize and times `factor`. Without a normalization rstd[count]
// is left as it is, and may be null.
template <class T>
void load_normalized(int64_t how, const TensorRows& from, T eps, T factor, T* x, int64_t pitch, T* rstd) {
  FM_REQUIRE(how == FM_AS_IT_IS || ((how == FM_STANDARDIZE || how == FM_RMS) && from.n > 0 && rstd));
  if (how == FM_STANDARDIZE) return load_standardized<T, true>(from, eps, factor, x, pitch, rstd);
  if (how == FM_RMS) return load_standardized<T, false>(from, eps, factor, x, pitch, rstd);
  load_rows(from.data, from.type, from.offset, from.stride, from.count, from.n, x, pitch);
  for (int r = 0; r < from.count && factor != 1; r++) multiply_row(x + r * pitch, factor, from.n);
}

// Equations 5-6 for WIDE tokens of n channels, a multiple of LANES, which become columns, x[n][WIDE], on the way: there a sum
// over channels is one vector for all tokens, and no number crosses lanes but by the transposition itself. Each token times
// `factor`, and its own of `factors` unless null; `reflect` is what reduce_row adds of the last channel, or zero.
template <class T, bool Centred>
void load_standardized_columns(const T* from, int64_t stride, int n, T eps, T factor, const T* factors, T reflect, T* x,
                               T* rstd) {
  FM_REQUIRE(n > 0 && n % LANES<T> == 0);
  constexpr int W = WIDE<T>, L = LANES<T>, CHAINS = L < 4 ? L : 4;
  for (int h = 0; h < W; h += L) {
    Vec<T> first{}, chains[CHAINS] = {};
    for (int i = 0; i < n; i += L) {
      Vec<T> square[L];
#pragma GCC unroll 16
      for (int r = 0; r < L; r++) square[r] = load(from + (h + r) * stride + i);
      transpose<T>(square);
      if (Centred && i == 0) first = square[0];
#pragma GCC unroll 16
      for (int r = 0; r < L; r++) {
        const Vec<T> y = square[r] - first;
        chains[r % CHAINS] += y;
        store(x + (i + r) * W + h, y);
      }
    }
    const Vec<T> mean = Centred ? total(chains) / (T)n : Vec<T>{};
    for (Vec<T>& chain : chains) chain = Vec<T>{};
    for (int i = 0; i < n; i += CHAINS)
#pragma GCC unroll 4
      for (int c = 0; c < CHAINS; c++) {
        const Vec<T> y = load(x + (i + c) * W + h) - mean;
        chains[c] += y * y;
      }
    T scale[L];
    store(scale, total(chains) / (T)n + eps);
#pragma GCC unroll 1  // a loop becomes vector roots, lines one after the other do not
    for (int r = 0; r < L; r++) scale[r] = 1 / square_root(scale[r]);
    store(rstd + h, load(scale));
    const Vec<T> by = factors ? load(scale) * factor * load(factors + h) : load(scale) * factor;
    const Vec<T> last = (load(x + (n - 1) * W + h) - mean) * by * reflect;
    for (int i = 0; i < n; i++) store(x + i * W + h, (load(x + i * W + h) - mean) * by + last);
  }
}
// The same by FmNormalize, which is one of the two that divide.
template <class T>
void load_normalized_columns(int64_t how, const T* from, int64_t stride, int n, T eps, T factor, const T* factors, T reflect,
                             T* x, T* rstd) {
  FM_REQUIRE(how == FM_STANDARDIZE || how == FM_RMS);
  if (how == FM_STANDARDIZE)
    load_standardized_columns<T, true>(from, stride, n, eps, factor, factors, reflect, x, rstd);
  else
    load_standardized_columns<T, false>(from, stride, n, eps, factor, factors, reflect, x, rstd);
}

// In place: the gradients of raw tokens, d[count][n], from those of the standardized ones, x, without their factor.
template <class T, bool Centred>
void standardize_rows_vjp(T* d, int64_t d_pitch, const T* x, int64_t x_pitch, const T* rstd, int count, int n) {
  FM_REQUIRE(0 < n && (count <= 1 || (d_pitch >= n && x_pitch >= n)));
  constexpr int L = LANES<T>;
  for (int begin = 0; begin < count; begin += L) {
    const int rows = (int)min(L, count - begin);
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
    store(mean, Centred ? sums<T>(total) / (T)n : Vec<T>{});
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

// A standardized token has mean 0, so that n - 1 channels of an orthogonal basis that has the constant vector in it carry all
// of its products: fewer features by 2 / n. Reflected so that the constant vector becomes the last axis, such a token is
//
//     x_i + x_last / (sqrt(n) - 1)  for i < n - 1,  and 0,
//
// which is what stands in the first n - 1 channels afterwards; the last is left as it was, for restore_row.
template <class T>
FM_INLINE T reflection(int n) {
  return 1 / (square_root((T)n) - 1);
}
template <class T>
FM_INLINE void add_to_row(T* x, T y, int n) {
  constexpr int L = LANES<T>;
  int i = 0;
  for (; i + L <= n; i += L) store(x + i, load(x + i) + y);
  for (; i < n; i++) x[i] += y;
}
template <class T>
FM_INLINE void reduce_row(T* x, T by, int n) {
  FM_REQUIRE(n > 1);
  const T last = x[n - 1];
  add_to_row(x, last * by, n);
  x[n - 1] = last;
}
template <class T>
FM_INLINE void restore_row(T* x, T by, int n) {
  reduce_row(x, -by, n);
}
// From gradients of the first n - 1 channels after reduce_row to those before it, but for a constant, which
// standardize_rows_vjp takes off.
template <class T>
FM_INLINE void reduce_row_vjp(T* d, T by, int n) {
  constexpr int L = LANES<T>;
  d[n - 1] = 0;
  Vec<T> a{};
  int i = 0;
  for (; i + L <= n; i += L) a += load(d + i);
  for (; i < n; i++) a[0] += d[i];
  d[n - 1] = by * horizontal_sum<T>(a);
}

// The same by FmNormalize.
template <class T>
void normalize_vjp(int64_t how, T* d, int64_t d_pitch, const T* x, int64_t x_pitch, const T* rstd, int count, int n) {
  if (how == FM_STANDARDIZE) standardize_rows_vjp<T, true>(d, d_pitch, x, x_pitch, rstd, count, n);
  if (how == FM_RMS) standardize_rows_vjp<T, false>(d, d_pitch, x, x_pitch, rstd, count, n);
}

}  // namespace FM_LEVEL
