// The dense form on tiles of bf16 numbers, with sums in fp32: as tiles/dense.h, with every product on pairs.
//
// Terms of a sum must lie in pairs. So weights and gradients are kept in up to two ways: as pairs of keys, [key / 2][W],
// for sums over keys, and as pairs of queries, [key][W / 2], for those over queries.
#pragma once
#include "simd/bf16.h"
#include "tiles/dense.h"

#if defined(FM_BF16_PAIRS)
namespace FM_LEVEL {

// Keys and values in pairs of channels, [key][..]; a row of zeros follows an odd number of them.
struct PairedKeys {
  const Pair *x, *v;
  int64_t x_pitch, v_pitch;
  int count;
};

constexpr int MOST_PAIRS = ROWS / 2;  // of keys in a register tile
constexpr int QUERY_PAIRS = WIDE<float> / 2;

// s[r] of queries before the key `first` + r becomes zero.
template <int R>
FM_INLINE void hide(Vec<float> (&s)[R][2], int64_t first, int64_t diagonal) {
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
    for (int h = 0; h < 2; h++) s[r][h] = lanes_from<float>(s[r][h], first + r - diagonal - h * LANES<float>);
}
// One key in pairs of queries.
FM_INLINE Vec<Pair> query_pairs(const Vec<float> (&row)[2]) { return narrow(row[0], row[1]); }
template <int R>
FM_INLINE void store_query_pairs(const Vec<float> (&rows)[R][2], Pair* out) {
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) store(out + r * QUERY_PAIRS, query_pairs(rows[r]));
}
template <int R>
FM_INLINE void store_key_pairs(const Vec<float> (&rows)[R][2], Pair* out) {
  constexpr int W = WIDE<float>;
#pragma GCC unroll 16
  for (int r = 0; r < R; r += 2, out += W) {
    const Vec<Pair> one = query_pairs(rows[r]), other = query_pairs(rows[r + 1]);
    store(out, interleave<false>(one, other));
    store(out + LANES<Pair>, interleave<true>(one, other));
  }
}
// Replace s by f(s), and by zero for queries before the key `first` + r.
template <int R>
FM_INLINE void similarity_tile(Vec<float> (&s)[R][2], int order, int64_t first, int64_t diagonal) {
  with_low_order(order, [&](auto Order) __attribute__((always_inline)) {
    constexpr int N = decltype(Order)::value;
    if constexpr (N >= 0) {
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
        for (int h = 0; h < 2; h++) s[r][h] = similarity<float, N>(s[r][h]);
    } else {
      float rows[R * WIDE<float>];
      store_tile<float, R>(s, rows, WIDE<float>);
      similarity_of_high_order(rows, R * WIDE<float>, order);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
        for (int h = 0; h < 2; h++) s[r][h] = load(rows + r * WIDE<float> + h * LANES<float>);
    }
  });
  if (first + R > diagonal) hide<R>(s, first, diagonal);
}
FM_INLINE int visible_pairs(int count, int64_t diagonal) { return (visible<float>(count, diagonal) + 1) / 2; }
FM_INLINE int pairs_visible_to_first_half(int count, int64_t diagonal) {
  return (visible_to_first_half<float>(count, diagonal) + 1) / 2;
}

// Calls f(first key, Int<number of keys>) for tiles of whole pairs of the keys that a sub-chunk sees.
template <class F>
FM_INLINE void each_pair_tile(int count, int64_t diagonal, const F& f) {
  const Tiles tiles(visible_pairs(count, diagonal), MOST_PAIRS);
  for (int t = 0; t < tiles.count; t++)
    with_rows<MOST_PAIRS>(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
      f(2 * (int64_t)tiles.start(t), Int<2 * decltype(R)::value>{});
    });
}

// A few rows behind the last visible key, so that tiles of keys need not end there.
FM_INLINE void clear_behind(Pair* by_queries, int count, int64_t diagonal) {
  const int end = 2 * visible_pairs(count, diagonal);
  if (end < count) memset(by_queries + (int64_t)end * QUERY_PAIRS, 0, min(count - end, ROWS) * QUERY_PAIRS * sizeof(Pair));
}

// weights in pairs of keys = f(k . x) for one sub-chunk x, [dim / 2][W] pairs of channels.
inline void weigh(const Shape<float>& shape, const PairedKeys& keys, const Pair* x, int64_t diagonal, Pair* weights) {
  FM_REQUIRE(1 <= shape.order && shape.order <= 4 && keys.x_pitch >= (shape.dim + 1) / 2);
  constexpr int W = WIDE<float>;
  each_pair_tile(keys.count, diagonal, [&](int64_t first, auto N) __attribute__((always_inline)) {
    constexpr int n = decltype(N)::value;
    Vec<float> acc[n][2];
    clear<float, n>(acc);
    multiply<float, n>(acc, keys.x + first * keys.x_pitch, 1, keys.x_pitch, x, W, (shape.dim + 1) / 2);
    similarity_tile<n>(acc, shape.order, first, diagonal);
    store_key_pairs<n>(acc, weights + first / 2 * W);
  });
}
// The same in pairs of queries, and f'(s) as [key][W].
inline void weigh(const Shape<float>& shape, const PairedKeys& keys, const Pair* x, int64_t diagonal, Pair* weights,
                  float* derivatives) {
  FM_REQUIRE(1 <= shape.order && shape.order <= 4 && keys.x_pitch >= (shape.dim + 1) / 2);
  constexpr int W = WIDE<float>;
  each_pair_tile(keys.count, diagonal, [&](int64_t first, auto N) __attribute__((always_inline)) {
    constexpr int n = decltype(N)::value;
    Vec<float> acc[n][2];
    clear<float, n>(acc);
    multiply<float, n>(acc, keys.x + first * keys.x_pitch, 1, keys.x_pitch, x, W, (shape.dim + 1) / 2);
    float* d = derivatives + first * W;
    store_similarity<float, n>(acc, shape.order - 1, nullptr, d);
    similarity_tile<n>(acc, shape.order, first, diagonal);
    store_query_pairs<n>(acc, weights + first * QUERY_PAIRS);
    finish_similarity<float>(d, n, shape.order - 1, nullptr, first, diagonal);
  });
  clear_behind(weights, keys.count, diagonal);
}

// Gradients of s, in both ways, from derivatives f'(s): times v . w + rest, for w, [value_dim / 2][W] pairs of channels, the
// gradients of the numerators, and rest, [W], those of the denominators.
inline void argument_grads(int value_dim, const PairedKeys& keys, const Pair* w, const float* rest, int64_t diagonal,
                           const float* derivatives, Pair* by_keys, Pair* by_queries) {
  FM_REQUIRE(keys.count >= 0 && keys.v_pitch >= (value_dim + 1) / 2);
  constexpr int W = WIDE<float>, L = LANES<float>;
  each_pair_tile(keys.count, diagonal, [&](int64_t first, auto N) __attribute__((always_inline)) {
    constexpr int n = decltype(N)::value;
    Vec<float> acc[n][2];
    for (int r = 0; r < n; r++) acc[r][0] = load(rest), acc[r][1] = load(rest + L);
    multiply<float, n>(acc, keys.v + first * keys.v_pitch, 1, keys.v_pitch, w, W, (value_dim + 1) / 2);
#pragma GCC unroll 16
    for (int r = 0; r < n; r++)
      for (int h = 0; h < 2; h++) acc[r][h] *= load(derivatives + (first + r) * W + h * L);
    store_query_pairs<n>(acc, by_queries + first * QUERY_PAIRS);
    store_key_pairs<n>(acc, by_keys + first / 2 * W);
  });
  clear_behind(by_queries, keys.count, diagonal);
}

}  // namespace FM_LEVEL
#endif
