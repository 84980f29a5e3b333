// The dense form on tiles: f(q . k) of up to some hundred queries and keys, its sums over keys, and their gradients.
//
// Queries lie in sub-chunks of W tokens, [channels][W]; keys lie in rows. Weights are kept as [keys][W] per sub-chunk.
#pragma once
#include "simd/vec.h"

namespace FM_LEVEL {

// f(s) = sum of s^l / l!
template <class T, int R, int Order>
FM_INLINE void similarity_of(Vec<T> (&s)[R][2], Int<Order>) {
  const Vec<T> one = broadcast((T)1);
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
    for (int h = 0; h < 2; h++) {
      const Vec<T> x = s[r][h];
      Vec<T> f = one;
      if constexpr (Order > 3) f = one + x * (T)0.25;
      if constexpr (Order > 2) f = one + x * (T)(1.0 / 3) * f;
      if constexpr (Order > 1) f = one + x * (T)0.5 * f;
      if constexpr (Order > 0) f = one + x * f;
      s[r][h] = f;
    }
}
template <class T, int R>
FM_INLINE void similarity(Vec<T> (&s)[R][2], int order) {
  if (order == 2)
    similarity_of<T, R>(s, Int<2>{});
  else if (order == 1)
    similarity_of<T, R>(s, Int<1>{});
  else if (order == 0)
    similarity_of<T, R>(s, Int<0>{});
  else if (order == 3)
    similarity_of<T, R>(s, Int<3>{});
  else if (order == 4)
    similarity_of<T, R>(s, Int<4>{});
}

// Keys and values as rows, and the values packed, or null: then they are used as rows.
template <class T>
struct Keys {
  const T* x;
  int64_t x_pitch;
  const T* u;
  int64_t u_pitch;
  const T* packed;
  int count;
};

template <class T>
struct Shape {
  int dim, columns, order;
};

// A query sees the keys up to its own position: `diagonal` is the position of the first query minus that of the first key.
constexpr int64_t UNMASKED = INT64_MAX / 2;

template <class T>
FM_INLINE void mask_row(T* row, int64_t key, int64_t diagonal) {
  const int64_t hidden = min(key - diagonal, WIDE<T>);
  for (int64_t w = 0; w < hidden; w++) row[w] = 0;
}

// How many of the keys some query of a sub-chunk sees.
template <class T>
FM_INLINE int visible(int count, int64_t diagonal) {
  return (int)max(0, min(count, diagonal + WIDE<T>));
}

// weights[key][W] = f(k . x) for one sub-chunk x, [dim][W], times `fading`, [key][W], unless null. A few rows behind the last
// visible key become zeros, so that tiles of keys need not end there.
template <class T>
void weights(const Shape<T>& shape, const Keys<T>& keys, const T* x, int64_t diagonal, const T* fading, T* out) {
  constexpr int W = WIDE<T>;
  const int count = visible<T>(keys.count, diagonal);
  const Tiles tiles(count);
  for (int t = 0; t < tiles.count; t++) {
    const int64_t first = tiles.start(t);
    with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
      constexpr int n = decltype(R)::value;
      Vec<T> acc[n][2];
      clear<T, n>(acc);
      multiply<T, n>(acc, keys.x + first * keys.x_pitch, 1, keys.x_pitch, x, W, shape.dim);
      similarity<T, n>(acc, shape.order);
      if (fading) multiply_tile<T, n>(acc, fading + first * W, W);
      store_tile<T, n>(acc, out + first * W, W);
      if (first + n > diagonal)
        for (int r = 0; r < n; r++) mask_row(out + (first + r) * W, first + r, diagonal);
    });
  }
  memset(out + (int64_t)count * W, 0, (min(keys.count, count + ROWS) - count) * W * sizeof(T));
}

// out[columns][W] += u^T weights
template <class T>
void weighted_sum(const Shape<T>& shape, const Keys<T>& keys, const T* weights, int64_t diagonal, T* out) {
  constexpr int W = WIDE<T>;
  const int count = visible<T>(keys.count, diagonal);
  const Tiles tiles(shape.columns);
  const T* a = keys.packed ? keys.packed : keys.u;
  for (int t = 0; t < tiles.count; t++) {
    T* o = out + tiles.start(t) * W;
    with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
      constexpr int n = decltype(R)::value;
      Vec<T> acc[n][2];
      clear<T, n>(acc);
      multiply<T, n>(acc, a, keys.packed ? n : keys.u_pitch, 1, weights, W, count);
      add_tile<T, n>(acc, o, W);
    });
    a += keys.packed ? (int64_t)tiles.rows(t) * keys.count : tiles.rows(t);
  }
}

// Gradients of the weights' arguments: out[key][W] = f'(s) (u . w), for w[columns][W] the gradient of the sums.
template <class T>
void argument_grads(const Shape<T>& shape, const Keys<T>& keys, const T* x, const T* w, int64_t diagonal, const T* fading,
                    T* out) {
  constexpr int W = WIDE<T>, L = LANES<T>;
  const Shape<T> derivative{shape.dim, shape.columns, shape.order - 1};
  weights(derivative, keys, x, diagonal, fading, out);
  const int count = visible<T>(keys.count, diagonal);
  const Tiles tiles(count);
  for (int t = 0; t < tiles.count; t++) {
    const int64_t first = tiles.start(t);
    with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
      constexpr int n = decltype(R)::value;
      Vec<T> acc[n][2];
      clear<T, n>(acc);
      multiply<T, n>(acc, keys.u + first * keys.u_pitch, 1, keys.u_pitch, w, W, shape.columns);
#pragma GCC unroll 16
      for (int r = 0; r < n; r++)
        for (int h = 0; h < 2; h++) {
          T* at = out + (first + r) * W + h * L;
          store(at, load(at) * acc[r][h]);
        }
    });
  }
}

// d_x[dim][W] += k^T grads, for grads[key][W] from argument_grads.
template <class T>
void query_grads(const Shape<T>& shape, const Keys<T>& keys, const T* grads, int64_t diagonal, T* d_x) {
  constexpr int W = WIDE<T>;
  const int count = visible<T>(keys.count, diagonal);
  const Tiles tiles(shape.dim);
  for (int t = 0; t < tiles.count; t++) {
    T* o = d_x + tiles.start(t) * W;
    with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
      constexpr int n = decltype(R)::value;
      Vec<T> acc[n][2];
      clear<T, n>(acc);
      multiply<T, n>(acc, keys.x + tiles.start(t), keys.x_pitch, 1, grads, W, count);
      add_tile<T, n>(acc, o, W);
    });
  }
}

// out[key][channels] += sum over queries of m[sub][key][W] * rows[query][channels], for the `count` keys of a tile: m is
// weights, with rows = w, for the values, or argument_grads, with rows = queries, for the keys. `m` has `stride` per sub-chunk.
template <class T>
void key_grads(int count, int64_t diagonal, const T* m, int64_t stride, int subs, const T* rows, int64_t pitch, int channels,
               T* out, int64_t out_pitch) {
  constexpr int W = WIDE<T>;
  const Tiles tiles(count);
  for (int c = 0; c < channels; c += W)
    for (int t = 0; t < tiles.count; t++) {
      const int64_t first = tiles.start(t);
      with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
        constexpr int n = decltype(R)::value;
        Vec<T> acc[n][2];
        clear<T, n>(acc);
        for (int64_t sub = 0; sub < subs; sub++)
          if (visible<T>(count, diagonal + sub * W) > first)
            multiply<T, n>(acc, m + sub * stride + first * W, 1, W, rows + sub * W * pitch + c, pitch, W);
        add_tile<T, n>(acc, out + first * out_pitch + c, out_pitch);
      });
    }
}

}  // namespace FM_LEVEL
