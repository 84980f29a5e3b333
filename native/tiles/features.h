// Monomials by cyclic diagonals: the features of tokens, in rows and in columns, and the layout of a state.
//
// Degree 2 has the features x_m x_(m+d mod D), m = 0 .. D-1, for d = 0 .. D/2 (of the last diagonal only half, if D is even):
// each pair of channels once. A diagonal is the product of a token with a shifted copy of itself, so WIDE features of
// one token are two loads and a multiply, and all of them are used. A block is WIDE features of a diagonal; its part of
// the state is [Dv + 1][WIDE], so that the denominator's column of ones is just one more row. The blocks of degree 1 lie side
// by side, [Dv + 1][D], so that they are read in one go.
// A square is scaled by 1 / sqrt(2), as in the public layout of a state, so that the layouts differ in nothing but order.
#pragma once
#include "api.h"
#include "simd/transpose.h"
#include "tiles/dropout.h"

namespace FM_LEVEL {

constexpr double ROOT_HALF = 0.70710678118654752440;

struct Block {
  int shift;  // -1: degree 1
  int first, lanes;
};

template <class T>
struct Features {
  static constexpr int W = WIDE<T>;
  static constexpr int GROUP = W < 64 ? 64 / W : 1;  // blocks used together: their part of the state stays in the cache
  static constexpr int MOST = GROUP > FM_MAX_DIM / W + 1 ? GROUP : FM_MAX_DIM / W + 1;  // or linear ones
  int dim, columns, order;
  int blocks, linear;  // blocks in all, and of degree 1: these come first
  int64_t head;        // the constant feature lies in front of the blocks
  int64_t size;

  Features(int dim, int columns, int order) : dim(dim), columns(columns), order(order) {
    const int across = (dim + W - 1) / W;
    blocks = linear = across;
    if (order == 2) blocks += (dim - 1) / 2 * across + across + (dim % 2 == 0 ? (dim / 2 + W - 1) / W : 0);
    head = round_up(columns, W);
    size = head + (int64_t)blocks * columns * W;
  }
  // How far a token is read from: all blocks of it, and those of its shifted copies if there are any.
  int64_t row_end() const { return round_up(dim, W) + (order == 2 ? dim / 2 : 0); }
  int64_t row_pitch() const { return round_up(row_end(), W); }

  Block block(int b) const {
    const int across = linear;
    const int shift = b / across - 1, first = b % across * W;
    const int length = shift > 0 && 2 * shift == dim ? dim / 2 : dim;
    return {shift, first, (int)min(W, length - first)};
  }
  // The row of a feature in the public layout: by degree, then lexicographic.
  int64_t public_row(const Block& block, int lane) const {
    const int64_t one = block.first + lane;
    if (block.shift < 0) return 1 + one;
    const int64_t other = (one + block.shift) % dim, m = min(one, other), l = max(one, other);
    return 1 + dim + m * dim - m * (m - 1) / 2 + l - m;
  }
  int64_t offset(int b) const { return head + (int64_t)b * W * (b < linear ? 1 : columns); }
  int64_t pitch(int b) const { return b < linear ? (int64_t)linear * W : W; }  // from column to column
};

// Continues a token cyclically up to its end, so that a shift is a load from further on. A vector may reach behind the end, not
// behind the pitch.
template <class T>
void wrap_row(const Features<T>& f, T* x, int64_t pitch) {
  FM_REQUIRE(pitch >= f.row_end());
  constexpr int L = LANES<T>;
  const int64_t end = f.row_end();
  int64_t i = f.dim;
  if (f.dim >= L)
    for (; i < end && i + L <= pitch; i += L) store(x + i, load(x + i - f.dim));
  for (; i < end; i++) x[i] = x[i - f.dim];
}

// out = panels [tile][tokens][rows of the tile] of u, [tokens][columns], so that a tile walks through memory in order.
template <class T>
void pack(const T* u, int64_t pitch, int tokens, int columns, T* out) {
  FM_REQUIRE(columns > 0 && pitch >= columns);
  const Tiles tiles(columns);
  for (int t = 0; t < tiles.count; t++) {
    const T* from = u + tiles.start(t);
    with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
      constexpr int n = decltype(R)::value;
      for (int i = 0; i < tokens; i++, out += n) memcpy(out, from + i * pitch, n * sizeof(T));
    });
  }
}

// out = the features of block b in rows, [tokens][W], those that dropout leaves. Requires tokens that wrap_row has continued,
// if the order is 2, and reads them up to row_pitch(). Lanes behind those of the block hold numbers that the state's rows for
// them take up and no result depends on.
template <class T, bool Drops>
void row_features(const Features<T>& f, int b, const T* x, int64_t x_pitch, int tokens, const FeatureMasks<T>& masks, T* out) {
  FM_REQUIRE(0 <= b && b < f.blocks && (tokens <= 1 || x_pitch >= f.row_end()));
  constexpr int W = WIDE<T>, L = LANES<T>;
  const Block block = f.block(b);
  const T *left = x + block.first, *right = left + block.shift;
  const bool is_linear = block.shift < 0;
  Words<T> low{}, high{};
  if constexpr (Drops) low = load_words<T>(masks.features + b * W), high = load_words<T>(masks.features + b * W + L);
  for (int n = 0; n < tokens; n++, left += x_pitch, right += x_pitch, out += W) {
    Vec<T> a = load(left), c = load(left + L);
    if (!is_linear) a *= load(right), c *= load(right + L);
    if constexpr (Drops) {
      const TokenWords<T> token = masks.token(n);
      a = kept(masks, a, low, token), c = kept(masks, c, high, token);
    }
    store(out, a), store(out + L, c);
  }
  for (T* square = out - (int64_t)tokens * W; block.shift == 0 && square < out; square++) *square *= (T)ROOT_HALF;
}
template <class T>
void row_features(const Features<T>& f, int b, const T* x, int64_t x_pitch, int tokens, const FeatureMasks<T>& masks, T* out) {
  if (masks.drop(b < f.linear))
    row_features<T, true>(f, b, x, x_pitch, tokens, masks, out);
  else
    row_features<T, false>(f, b, x, x_pitch, tokens, masks, out);
}

// out = the features of block b in columns, [lanes][W], of the sub-chunk x, [dim][W]. Returns where they end. `block` is
// f.block(b), which the caller computes once for all sub-chunks.
template <class T, bool Drops>
T* column_features(const Features<T>& f, int b, const Block& block, const T* x, const FeatureMasks<T>& masks, int64_t sub,
                   T* out) {
  FM_REQUIRE(0 <= b && b < f.blocks && block.first + block.lanes <= f.dim);
  constexpr int W = WIDE<T>, L = LANES<T>;
  TokenWords<T> low{}, high{};
  if constexpr (Drops) low = masks.tokens(sub * W), high = masks.tokens(sub * W + L);
  for (int lane = 0; lane < block.lanes; lane++, out += W) {
    const T* left = x + (block.first + lane) * W;
    Vec<T> a = load(left), c = load(left + L);
    if (block.shift >= 0) {
      const int other = block.first + lane + block.shift;
      const T* right = x + (other < f.dim ? other : other - f.dim) * W;
      a *= load(right), c *= load(right + L);
    }
    if constexpr (Drops) {
      const Words<T> feature = broadcast_word<T>(masks.features[b * W + lane]);
      a = kept(masks, a, feature, low), c = kept(masks, c, feature, high);
    }
    store(out, a), store(out + L, c);
  }
  for (T* square = out - block.lanes * W; block.shift == 0 && square < out; square++) *square *= (T)ROOT_HALF;
  return out;
}
template <class T>
T* column_features(const Features<T>& f, int b, const Block& block, const T* x, const FeatureMasks<T>& masks, int64_t sub,
                   T* out) {
  return masks.drop(b < f.linear) ? column_features<T, true>(f, b, block, x, masks, sub, out)
                                  : column_features<T, false>(f, b, block, x, masks, sub, out);
}

// Rows of tokens and their values, packed values too or null: then they are used as rows.
template <class T>
struct Keys {
  const T* x;
  int64_t x_pitch;
  const T* u;
  int64_t u_pitch;
  const T* packed;
  int count;
  bool are_finite = true;  // the values; if not, those that causality hides are left out, as zero times them is NaN
  int packed_first = 0;    // the place of the first of these keys in the packed values, which may be of more
  int packed_count = count;
};

// The point c that a sum over keys is about, or null for zero. About the mean of some keys, those that are alike lose no
// digits: with b = q . c and order 2
//
//     f(q . k) = f(b) + f'(b) q . (k - c) + (q . (k - c))^2 / 2
//
// is exact for any c. Features of keys are those of k - c; of queries, the constant is multiplied by f(b) and degree 1 by
// f'(b).
template <class T>
struct Centre {
  const T* at = nullptr;                       // [dim]
  const T *value = nullptr, *slope = nullptr;  // f(b) and f'(b) of queries, [tokens]
};

// A state in the public layout, (F, columns), and in blocks: calls move(rows, count, at, pitch) for up to LANES features of a
// block at a time: rows are where they lie in the public layout, `at` and `pitch` from column to column where in the blocks.
template <class T, class F>
void each_lane_group(const Features<T>& f, T* from, T* state, const F& move) {
  constexpr int L = LANES<T>;
  for (int b = 0; b < f.blocks; b++) {
    const Block block = f.block(b);
    for (int first = 0; first < block.lanes; first += L) {
      T* rows[L];
      const int count = (int)min(L, block.lanes - first);
      for (int i = 0; i < count; i++) rows[i] = from + f.public_row(block, first + i) * f.columns;
      move(rows, count, state + f.offset(b) + first, f.pitch(b));
    }
  }
}
// state[f.size] = the sum `from` of the public layout, (F, columns); lanes without a feature become zeros. Squares of LANES
// features and columns are transposed in registers; the columns behind them go one by one.
template <class T>
void state_from_public(const Features<T>& f, const T* from, T* state) {
  FM_REQUIRE(f.order <= 2 && from && state);
  constexpr int L = LANES<T>;
  memset(state, 0, f.size * sizeof(T));
  memcpy(state, from, f.columns * sizeof(T));
  each_lane_group(f, (T*)from, state, [&](T* const* rows, int count, T* at, int64_t pitch) {
    int j = 0;
    for (; j + L <= f.columns; j += L) {
      Vec<T> square[L];
      for (int i = 0; i < L; i++) square[i] = i < count ? load(rows[i] + j) : Vec<T>{};
      transpose<T>(square);
      for (int i = 0; i < L; i++) store(at + (j + i) * pitch, square[i]);
    }
    for (; j < f.columns; j++)
      for (int i = 0; i < count; i++) at[j * pitch + i] = rows[i][j];
  });
}
// The inverse: writes all of `to`, (F, columns).
template <class T>
void state_to_public(const Features<T>& f, const T* state, T* to) {
  FM_REQUIRE(f.order <= 2 && state && to);
  constexpr int L = LANES<T>;
  memcpy(to, state, f.columns * sizeof(T));
  each_lane_group(f, to, (T*)state, [&](T* const* rows, int count, const T* at, int64_t pitch) {
    int j = 0;
    for (; j + L <= f.columns; j += L) {
      Vec<T> square[L];
      for (int i = 0; i < L; i++) square[i] = load(at + (j + i) * pitch);
      transpose<T>(square);
      for (int i = 0; i < count; i++) store(rows[i] + j, square[i]);
    }
    for (; j < f.columns; j++)
      for (int i = 0; i < count; i++) rows[i][j] = at[j * pitch + i];
  });
}

}  // namespace FM_LEVEL
