// The dense form on tiles: f(q . k) of up to some hundred queries and keys, its sums over keys, and their gradients.
//
// Queries lie in sub-chunks of W tokens, [channels][W]; keys lie in rows. Weights are kept as [keys][W] per sub-chunk.
#pragma once
#include <initializer_list>

#include "simd/bf16.h"
#include "tiles/features.h"

namespace FM_LEVEL {

// f(s) = sum of s^l / l!; s itself for Order = -1
template <class T, int Order>
FM_INLINE Vec<T> similarity(Vec<T> s) {
  const Vec<T> one = broadcast((T)1);
  Vec<T> f = one;
  if constexpr (Order < 0) f = s;
  if constexpr (Order > 3) f = one + s * (T)0.25;
  if constexpr (Order > 2) f = one + s * (T)(1.0 / 3) * f;
  if constexpr (Order > 1) f = one + s * (T)0.5 * f;
  if constexpr (Order > 0) f = one + s * f;
  return f;
}
// f(Int<order>) for an order, or that of a derivative, up to 2, f(Int<-1>) above. The usual ones come first.
template <class F>
FM_INLINE void with_low_order(int order, const F& f) {
  if (order == 2)
    f(Int<2>{});
  else if (order == 1)
    f(Int<1>{});
  else if (order == 0)
    f(Int<0>{});
  else
    f(Int<-1>{});
}
// Replace numbers s by f(s) of order 3 or 4: a loop over memory, because code for these in every tile is slow to compile.
template <class T>
FM_NOINLINE void similarity_of_high_order(T* s, int64_t count, int order) {
  constexpr int L = LANES<T>;
  if (order == 3)
    for (int64_t i = 0; i < count; i += L) store(s + i, similarity<T, 3>(load(s + i)));
  else
    for (int64_t i = 0; i < count; i += L) store(s + i, similarity<T, 4>(load(s + i)));
}

template <class T>
struct Shape {
  int dim, columns, order;
};

// A query sees the keys up to its own position: `diagonal` is the position of the first query minus that of the first key.
constexpr int64_t UNMASKED = INT64_MAX / 2;

template <class T>
FM_INLINE void mask_row(T* row, int64_t key, int64_t diagonal) {
  constexpr int L = LANES<T>;
  const int64_t hidden = key - diagonal;
  if (hidden > 0)
    for (int h = 0; h < 2; h++) store(row + h * L, lanes_from<T>(load(row + h * L), hidden - h * L));
}

// The number of keys that some query of a sub-chunk sees.
template <class T>
FM_INLINE int visible(int count, int64_t diagonal) {
  return (int)max(0, min(count, diagonal + WIDE<T>));
}

// The number of keys that some query of the first half sees: behind these, the first half of the lanes is idle.
template <class T>
FM_INLINE int visible_to_first_half(int count, int64_t diagonal) {
  return (int)max(0, min(count, diagonal + LANES<T>));
}
// Calls f(first key, Int<number of keys>, Int<First>) for tiles of the keys that some query of a sub-chunk sees: First = 1
// where none of its first half does.
template <class T, class F>
FM_INLINE void each_key_tile(int count, int64_t diagonal, const F& f) {
  const int seen = visible<T>(count, diagonal), by_all = visible_to_first_half<T>(count, diagonal);
  const Tiles tiles(by_all), others(seen - by_all);
  for (int t = 0; t < tiles.count; t++)
    with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) { f((int64_t)tiles.start(t), R, Int<0>{}); });
  for (int t = 0; t < others.count; t++)
    with_rows(others.rows(t),
              [&](auto R) __attribute__((always_inline)) { f(by_all + (int64_t)others.start(t), R, Int<1>{}); });
}

// out[r] = f(s[r]) for an order up to 2, times `fading` unless null; s[r] above.
template <class T, int R>
FM_INLINE void store_similarity(const Vec<T> (&s)[R][2], int order, const T* fading, T* out) {
  constexpr int W = WIDE<T>, L = LANES<T>;
  with_low_order(order, [&](auto Order) __attribute__((always_inline)) {
    constexpr int degree = decltype(Order)::value;
    if (degree >= 0 && fading) {
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
        for (int h = 0; h < 2; h++) store(out + r * W + h * L, similarity<T, degree>(s[r][h]) * load(fading + r * W + h * L));
      return;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
      for (int h = 0; h < 2; h++) store(out + r * W + h * L, similarity<T, degree>(s[r][h]));
  });
}
// The rest of store_similarity for `count` rows of keys: orders above 2, and zeros for queries before the key `first` + r.
template <class T>
FM_NOINLINE void finish_rows(T* rows, int count, int order, const T* fading, int64_t first, int64_t diagonal) {
  constexpr int W = WIDE<T>, L = LANES<T>;
  if (order > 2) {
    similarity_of_high_order(rows, count * W, order);
    for (int i = 0; fading && i < count * W; i += L) store(rows + i, load(rows + i) * load(fading + i));
  }
  for (int r = 0; first + count > diagonal && r < count; r++) mask_row(rows + r * W, first + r, diagonal);
}
template <class T>
FM_INLINE void finish_similarity(T* rows, int count, int order, const T* fading, int64_t first, int64_t diagonal) {
  if (order > 2 || first + count > diagonal) finish_rows(rows, count, order, fading, first, diagonal);
}

// weights[key][W] = f(k . x) for one sub-chunk x, [dim][W], times `fading`, [key][W], unless null; slopes the same for f'.
// Either may be null. A few rows behind the last visible key become zeros, so that tiles of keys need not end there. Both have
// room for all keys.
template <class T>
void weigh(const Shape<T>& shape, const Keys<T>& keys, const T* x, int64_t diagonal, const T* fading, T* weights, T* slopes) {
  FM_REQUIRE(1 <= shape.order && shape.order <= 4 && keys.count >= 0 && (keys.count <= 1 || keys.x_pitch >= shape.dim));
  constexpr int W = WIDE<T>;
  const int count = visible<T>(keys.count, diagonal);
  each_key_tile<T>(keys.count, diagonal, [&](int64_t first, auto R, auto First) __attribute__((always_inline)) {
    constexpr int n = decltype(R)::value;
    Vec<T> acc[n][2];
    clear<T, n>(acc);
    multiply<T, n, decltype(First)::value>(acc, keys.x + first * keys.x_pitch, 1, keys.x_pitch, x, W, shape.dim);
    const T* fades = fading ? fading + first * W : nullptr;
    if (slopes) store_similarity<T, n>(acc, shape.order - 1, fades, slopes + first * W);
    if (weights) store_similarity<T, n>(acc, shape.order, fades, weights + first * W);
    if (slopes) finish_similarity(slopes + first * W, n, shape.order - 1, fades, first, diagonal);
    if (weights) finish_similarity(weights + first * W, n, shape.order, fades, first, diagonal);
  });
  for (T* to : {weights, slopes})
    if (to) memset(to + (int64_t)count * W, 0, (min(keys.count, count + ROWS) - count) * W * sizeof(T));
}

// The result of weighted_sum, with the same bits, over the pairs that causality does not hide: slow, for values that are not
// finite.
// `weight(key, query)` returns a weight. It reads `columns` numbers of a row of u, and nothing behind them.
template <class T, class F>
void sum_of_visible(int columns, const T* u, int64_t u_pitch, int count, int64_t diagonal, const F& weight, T* out) {
  FM_REQUIRE(count <= 1 || u_pitch >= columns);
  constexpr int W = WIDE<T>;
  for (int j = 0; j < columns; j++) {
    T sums[W] = {};
    for (int64_t n = 0; n < count; n++)
      for (int64_t w = max(0, n - diagonal); w < W; w++) sums[w] += weight(n, w) * u[n * u_pitch + j];
    for (int w = 0; w < W; w++) out[j * W + w] += sums[w];
  }
}

// out[columns][W] += u^T weights, for weights that `weigh` has made: zeros for the queries that do not see a key.
template <class T>
void weighted_sum(const Shape<T>& shape, const Keys<T>& keys, const T* weights, int64_t diagonal, T* out) {
  FM_REQUIRE(keys.count >= 0 && (keys.count <= 1 || keys.u_pitch >= shape.columns));
  constexpr int W = WIDE<T>;
  const int count = visible<T>(keys.count, diagonal), by_all = visible_to_first_half<T>(keys.count, diagonal);
  if (!keys.are_finite) {
    const auto weight = [&](int64_t n, int64_t w) { return weights[n * W + w]; };
    return sum_of_visible<T>(shape.columns, keys.u, keys.u_pitch, count, diagonal, weight, out);
  }
  const Tiles tiles(shape.columns);
  const T* a = keys.packed ? keys.packed : keys.u;
  for (int t = 0; t < tiles.count; t++) {
    T* o = out + tiles.start(t) * W;
    with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
      constexpr int n = decltype(R)::value;
      Vec<T> acc[n][2];
      clear<T, n>(acc);
      const int64_t step = keys.packed ? n : keys.u_pitch;
      const T* first = keys.packed ? a + keys.packed_first * n : a;
      multiply<T, n>(acc, first, step, 1, weights, W, by_all);
      multiply<T, n, 1>(acc, first + by_all * step, step, 1, weights + by_all * W, W, count - by_all);
      add_tile<T, n>(acc, o, W);
    });
    a += keys.packed ? (int64_t)tiles.rows(t) * keys.packed_count : tiles.rows(t);
  }
}

// From derivatives f'(s), [key][W], to gradients of s, in place: times u . w, for w[columns][W] the gradient of the sums. Rows
// of keys that no query of the sub-chunk sees are left as they are. With `weights`, [key][W], `shares` becomes their product
// with u . w.
template <class T>
void argument_grads(const Shape<T>& shape, const Keys<T>& keys, const T* w, int64_t diagonal, T* slopes,
                    const T* weights = nullptr, T* shares = nullptr) {
  FM_REQUIRE(keys.count >= 0 && (keys.count <= 1 || keys.u_pitch >= shape.columns));
  FM_REQUIRE(!weights || shares);
  constexpr int W = WIDE<T>, L = LANES<T>;
  each_key_tile<T>(keys.count, diagonal, [&](int64_t first, auto R, auto First) __attribute__((always_inline)) {
    constexpr int n = decltype(R)::value, begin = decltype(First)::value;
    Vec<T> acc[n][2];
    clear<T, n>(acc);
    multiply<T, n, begin>(acc, keys.u + first * keys.u_pitch, 1, keys.u_pitch, w, W, shape.columns);
    if (weights)
#pragma GCC unroll 16
      for (int r = 0; r < n; r++)
        for (int h = begin; h < 2; h++) {
          const int64_t at = (first + r) * W + h * L;
          store(shares + at, load(weights + at) * acc[r][h]);
        }
#pragma GCC unroll 16
    for (int r = 0; r < n; r++)
      for (int h = begin; h < 2; h++) {
        T* at = slopes + (first + r) * W + h * L;
        store(at, load(at) * acc[r][h]);
      }
  });
}

// out[rows][W] += sum over the first `count` of a[..][row] * b[..][W], numbers or pairs of such: of keys and their gradients
// for those of queries, for example. Those behind the first `by_all` are zero in the first half of the lanes.
template <class T, class E>
void add_products(const E* a, int64_t a_pitch, int rows, const E* b, int64_t by_all, int64_t count, T* out) {
  FM_REQUIRE(0 <= by_all && by_all <= count && (count <= 1 || a_pitch >= rows));
  constexpr int W = WIDE<T>;
  const Tiles tiles(rows);
  for (int t = 0; t < tiles.count; t++)
    with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
      constexpr int n = decltype(R)::value;
      Vec<T> acc[n][2];
      clear<T, n>(acc);
      multiply<T, n>(acc, a + tiles.start(t), a_pitch, 1, b, W, by_all);
      multiply<T, n, 1>(acc, a + by_all * a_pitch + tiles.start(t), a_pitch, 1, b + by_all * W, W, count - by_all);
      add_tile<T, n>(acc, out + (int64_t)tiles.start(t) * W, W);
    });
}

// out[key][channels] += sum over queries of m[sub][key][query] * rows[query][channels], for the `count` keys of a tile: m is
// weights, with rows = w, for the values, or argument_grads, with rows = queries, for the keys; or both in pairs of queries.
// `m` has `stride` per sub-chunk. Channels are taken W at a time: rows are read, and out is written, up to the next multiple.
template <class T, class E>
void key_grads(int count, int64_t diagonal, const E* m, int64_t stride, int subs, const E* rows, int64_t pitch, int channels,
               T* out, int64_t out_pitch) {
  constexpr int W = WIDE<T>, STEPS = W / TERMS<E>;
  FM_REQUIRE(pitch >= round_up(channels, W) && out_pitch >= round_up(channels, W) && (subs <= 1 || stride >= count * STEPS));
  const Tiles tiles(count);
  for (int c = 0; c < channels; c += W)
    for (int t = 0; t < tiles.count; t++) {
      const int64_t first = tiles.start(t);
      with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
        constexpr int n = decltype(R)::value;
        Vec<T> acc[n][2];
        clear<T, n>(acc);
        for (int64_t sub = 0; sub < subs; sub++) {
          if (visible<T>(count, diagonal + sub * W) <= first) continue;
          const int skipped = visible_to_first_half<T>(count, diagonal + sub * W) <= first ? STEPS / 2 : 0;
          multiply<T, n>(acc, m + sub * stride + first * STEPS + skipped, 1, STEPS, rows + (sub * STEPS + skipped) * pitch + c,
                         pitch, STEPS - skipped);
        }
        add_tile<T, n>(acc, out + first * out_pitch + c, out_pitch);
      });
    }
}

}  // namespace FM_LEVEL
