// Monomials by cyclic diagonals, and the three primitives on a state: accumulate, read and read's gradient.
//
// Degree 2 has the features x_m x_(m+d mod D), m = 0 .. D-1, for d = 0 .. D/2 (of the last diagonal only half, if D is even):
// each pair of channels once. A diagonal is the product of a token with a shifted copy of itself, so WIDE features of
// one token are two loads and a multiply, and none is computed in vain. A block is WIDE features of a diagonal; its part of
// the state is [Dv + 1][WIDE], so that the denominator's column of ones is just one more row. The blocks of degree 1 lie side
// by side, [Dv + 1][D], so that they are read in one go.
// A square is scaled by 1 / sqrt(2), as in the public layout of a state, so that the layouts differ in nothing but order.
#pragma once
#include "simd/prefetch.h"
#include "simd/transpose.h"

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
  // Of a token, and of its shifted copies if there are any.
  int64_t row_pitch() const { return round_up(round_up(dim, W) + (order == 2 ? dim / 2 + W : 0), W); }

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

// Continues a token cyclically, so that a shift is a load from further on.
template <class T>
void wrap_row(T* x, int dim, int64_t pitch) {
  for (int64_t i = dim; i < pitch; i++) x[i] = x[i - dim];
}

// [tokens][columns] to panels [tile][tokens][rows of the tile], so that a tile walks through memory in order.
template <class T>
void pack(const T* u, int64_t pitch, int tokens, int columns, T* out) {
  const Tiles tiles(columns);
  for (int t = 0; t < tiles.count; t++) {
    const T* from = u + tiles.start(t);
    with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
      constexpr int n = decltype(R)::value;
      for (int i = 0; i < tokens; i++, out += n) memcpy(out, from + i * pitch, n * sizeof(T));
    });
  }
}

// A sum over keys, and what its additions have lost to rounding; null where they are too few for that to matter.
template <class T>
struct State {
  T *sum, *lost;
};

// state = state * fade + phi(x)^T u. `packed` is u packed, or null: then u is used as it is.
template <class T>
void accumulate(const Features<T>& f, State<T> state, const T* x, int64_t x_pitch, const T* u, int64_t u_pitch, const T* packed,
                int tokens, T fade, T* panel, Prefetcher& prefetcher) {
  constexpr int W = WIDE<T>, L = LANES<T>;
  for (int64_t j = 0; j < f.head; j += W) {
    Vec<T> a{}, b{};
    for (int n = 0; n < tokens; n++) a += load(u + n * u_pitch + j), b += load(u + n * u_pitch + j + L);
    Vec<T> total[1][2] = {{a, b}};
    add_tile(total, state.sum + j, state.lost ? state.lost + j : nullptr, W, fade);
  }
  const Tiles tiles(f.columns);
  for (int i = 0; i < f.blocks; i++) {
    const Block block = f.block(i);
    const T* phi = x + block.first;
    int64_t step = x_pitch;
    if (block.shift >= 0) {
      const T* y = phi + block.shift;
      for (int n = 0; n < tokens; n++) {
        store(panel + n * W, load(phi + n * x_pitch) * load(y + n * x_pitch));
        store(panel + n * W + L, load(phi + n * x_pitch + L) * load(y + n * x_pitch + L));
      }
      for (int n = 0; block.shift == 0 && n < tokens * W; n++) panel[n] *= (T)ROOT_HALF;
      phi = panel, step = W;
    }
    T *s = state.sum + f.offset(i), *lost = state.lost ? state.lost + f.offset(i) : nullptr;
    const int64_t pitch = f.pitch(i);
    const T* a = packed ? packed : u;
    for (int t = 0; t < tiles.count; t++) {
      const int rows = tiles.rows(t);
      for (int r = 0; r < rows; r++) __builtin_prefetch(s + r * pitch, 1);
      prefetcher.prefetch_part(f.blocks * tiles.count);
      with_rows(rows, [&](auto R) __attribute__((always_inline)) {
        constexpr int n = decltype(R)::value;
        Vec<T> acc[n][2];
        clear<T, n>(acc);
        multiply<T, n>(acc, a, packed ? n : u_pitch, 1, phi, step, tokens);
        add_tile<T, n>(acc, s, lost, pitch, fade);
      });
      s += rows * pitch;
      if (lost) lost += rows * pitch;
      a += packed ? (int64_t)rows * tokens : rows;
    }
  }
}

// out[sub] = (phi(x) state)^T, [columns][W], for each sub-chunk of W tokens that x[sub], [dim][W], holds.
template <class T>
void read(const Features<T>& f, const T* state, const T* x, int subs, T* out, int columns, T* panel, Prefetcher& prefetcher) {
  constexpr int W = WIDE<T>, L = LANES<T>;
  const Tiles tiles(columns);
  for (int64_t sub = 0; sub < subs; sub++)
    for (int t = 0; t < tiles.count; t++) {
      const int first = tiles.start(t);
      prefetcher.prefetch_part(subs * tiles.count);
      with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
        constexpr int n = decltype(R)::value;
        Vec<T> acc[n][2];
#pragma GCC unroll 16
        for (int r = 0; r < n; r++) acc[r][0] = acc[r][1] = broadcast(state[first + r]);
        multiply<T, n>(acc, state + f.offset(0) + first * f.pitch(0), 1, f.pitch(0), x + sub * f.dim * W, W, f.dim);
        store_tile<T, n>(acc, out + (sub * f.columns + first) * W, W);
      });
    }
  for (int i = f.linear, stop; i < f.blocks; i = stop) {
    stop = (int)min(i + f.GROUP, f.blocks);
    Block group[f.GROUP];
    for (int b = i; b < stop; b++) group[b - i] = f.block(b);
    for (int64_t sub = 0; sub < subs; sub++) {
      const T* xs = x + sub * f.dim * W;
      T* p = panel;
      for (int b = i; b < stop; b++) {
        const Block block = group[b - i];
        for (int lane = 0; lane < block.lanes; lane++, p += W) {
          const int other = block.first + lane + block.shift;
          const T *left = xs + (block.first + lane) * W, *right = xs + (other < f.dim ? other : other - f.dim) * W;
          store(p, load(left) * load(right)), store(p + L, load(left + L) * load(right + L));
        }
        for (T* square = p - block.lanes * W; block.shift == 0 && square < p; square++) *square *= (T)ROOT_HALF;
      }
      for (int t = 0; t < tiles.count; t++) {
        T* o = out + (sub * f.columns + tiles.start(t)) * W;
        with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
          constexpr int n = decltype(R)::value;
          Vec<T> acc[n][2];
          clear<T, n>(acc);
          const T* phi = panel;
          for (int b = i; b < stop; b++) {
            const int lanes = group[b - i].lanes;
            multiply<T, n>(acc, state + f.offset(b) + tiles.start(t) * W, 1, W, phi, W, lanes);
            phi += lanes * W;
          }
          add_tile<T, n>(acc, o, W);
        });
      }
    }
  }
}

// d_x[sub] += J_phi(x)^T (state w): the gradient of x from that of read(x), which is w[sub], [columns][W].
template <class T>
void read_vjp(const Features<T>& f, const T* state, const T* x, const T* w, int subs, T* d_x, Prefetcher& prefetcher) {
  constexpr int W = WIDE<T>, L = LANES<T>;
  for (int i = 0; i < f.blocks; i += f.GROUP) {
    const int stop = (int)min(i + f.GROUP, f.blocks);
    Block group[f.GROUP];
    for (int b = i; b < stop; b++) group[b - i] = f.block(b);
    for (int64_t sub = 0; sub < subs; sub++) {
      const T *xs = x + sub * f.dim * W, *ws = w + sub * f.columns * W;
      T* ds = d_x + sub * f.dim * W;
      for (int b = i; b < stop; b++) {
        const Block block = group[b - i];
        const Tiles tiles(block.lanes);
        prefetcher.prefetch_part(subs * f.blocks);
        for (int t = 0; t < tiles.count; t++) {
          const int first = block.first + tiles.start(t);
          with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
            constexpr int n = decltype(R)::value;
            Vec<T> acc[n][2];
            clear<T, n>(acc);
            multiply<T, n>(acc, state + f.offset(b) + tiles.start(t), f.pitch(b), 1, ws, W, f.columns);
#pragma GCC unroll 16
            for (int r = 0; r < n; r++) {
              T* left = ds + (first + r) * W;
              if (block.shift < 0) {
                store(left, load(left) + acc[r][0]), store(left + L, load(left + L) + acc[r][1]);
                continue;
              }
              int other = first + r + block.shift;
              if (other >= f.dim) other -= f.dim;
              if (block.shift == 0) acc[r][0] *= (T)ROOT_HALF, acc[r][1] *= (T)ROOT_HALF;
              const T* y = xs + other * W;
              store(left, load(left) + acc[r][0] * load(y)), store(left + L, load(left + L) + acc[r][1] * load(y + L));
              const T* z = xs + (first + r) * W;
              T* right = ds + other * W;
              store(right, load(right) + acc[r][0] * load(z));
              store(right + L, load(right + L) + acc[r][1] * load(z + L));
            }
          });
        }
      }
    }
  }
}

// A state in the public layout, (F, columns), and in blocks: calls move(rows, count, at, pitch) for up to LANES features of a block
// at a time: rows are where they lie in the public layout, `at` and `pitch` from column to column where in the blocks.
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
// Squares of LANES features and columns are transposed in registers; the columns behind them go one by one.
template <class T>
void state_from_public(const Features<T>& f, const T* from, T* state) {
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
template <class T>
void state_to_public(const Features<T>& f, const T* state, T* to) {
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
