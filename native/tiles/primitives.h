// The three primitives on a state, accumulate, read and read's gradient; and, where features are dropped, pairs of tokens.
#pragma once
#include "simd/prefetch.h"
#include "tiles/features.h"

namespace FM_LEVEL {

// A sum over keys, and what its additions have lost to rounding; null where they are too few for that to matter.
template <class T>
struct State {
  T *sum, *lost;
  const T* centre;  // what it is about, [row_pitch], continued like a token; null: zero
};

// state = state * fade + phi(x)^T u for the rows of some keys, from which the centre has been subtracted, or of queries, with
// `about` theirs, and the gradients of their sums. Columns of u are read up to f.head; no result depends on those behind
// f.columns. x is read as row_features does. `panel` has room for [tokens][W].
template <class T>
void accumulate(const Features<T>& f, State<T> state, const Keys<T>& keys, const FeatureMasks<T>& masks, const Centre<T>& about,
                T fade, T* panel, Prefetcher& prefetcher) {
  FM_REQUIRE(f.order <= 2 && keys.count >= 0 && (keys.count <= 1 || (keys.u_pitch >= f.head && keys.x_pitch >= f.row_end())));
  FM_REQUIRE(!about.at || (f.order == 2 && about.value && about.slope && !masks.features));
  constexpr int W = WIDE<T>, L = LANES<T>;
  const T *x = keys.x, *u = keys.u, *packed = keys.packed;
  const int64_t x_pitch = keys.x_pitch, u_pitch = keys.u_pitch;
  const int tokens = keys.count;
  for (int64_t j = 0; j < f.head; j += W) {
    Vec<T> a{}, b{};
    for (int n = 0; n < tokens; n++) {
      const T by = about.at ? about.value[n] : 1;
      a += load(u + n * u_pitch + j) * by, b += load(u + n * u_pitch + j + L) * by;
    }
    Vec<T> total[1][2] = {{a, b}};
    add_tile(total, state.sum + j, state.lost ? state.lost + j : nullptr, W, fade);
  }
  const Tiles tiles(f.columns);
  for (int i = 0; i < f.blocks; i++) {
    const T* phi = x + f.block(i).first;
    int64_t step = x_pitch;
    if (i >= f.linear || masks.drop(true) || about.at) {
      row_features(f, i, x, x_pitch, tokens, masks, panel);
      for (int n = 0; i < f.linear && about.at && n < tokens * 2; n++)
        store(panel + n * L, load(panel + n * L) * about.slope[n / 2]);
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

// The tokens on the other side of a causal chunk where features are dropped: pairs of tokens cannot be shortened to a dot
// product there, so that their features take part one by one, beside those of the state.
template <class T>
struct Others {
  const T* x;  // rows
  int64_t x_pitch;
  int count;
  FeatureMasks<T> masks;
  bool are_later;  // which of them a token sees: those up to itself, or those from itself on
  T* rows;         // room for the features of all of them in some blocks, [block][count][W]
  T* pairs;        // [sub][other][W]: sums over features, which read makes, or gradients of such, which read_vjp takes
  int64_t stride;  // of a sub-chunk in `pairs`

  // Those that some token of a sub-chunk sees.
  int first(int64_t sub) const { return are_later ? (int)min(count, sub * WIDE<T>) : 0; }
  int last(int64_t sub) const { return are_later ? count : (int)min(count, (sub + 1) * WIDE<T>); }
  T* pairs_of(int64_t sub) const { return pairs + sub * stride; }
  void make_rows(const Features<T>& f, int begin, int end) const {
    for (int b = begin; b < end; b++) row_features(f, b, x, x_pitch, count, masks, rows_of(b - begin));
  }
  T* rows_of(int b) const { return rows + (int64_t)b * count * WIDE<T>; }
};

// pairs (+)= the product of the others' rows in some blocks with the features of a sub-chunk in columns, `phi`.
template <class T>
void add_pairs(const Others<T>& others, const Block* blocks, int count, const T* phi, int64_t sub, bool is_first) {
  FM_REQUIRE(0 < count && count <= Features<T>::MOST && others.stride >= others.count * (int64_t)WIDE<T>);
  constexpr int W = WIDE<T>;
  const int begin = others.first(sub), end = others.last(sub);
  const Tiles tiles(end - begin);
  for (int t = 0; t < tiles.count; t++) {
    const int64_t first = begin + tiles.start(t);
    T* to = others.pairs_of(sub) + first * W;
    with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
      constexpr int n = decltype(R)::value;
      Vec<T> acc[n][2];
      clear<T, n>(acc);
      const T* columns = phi;
      for (int b = 0; b < count; b++) {
        multiply<T, n>(acc, others.rows_of(b) + first * W, 1, W, columns, W, blocks[b].lanes);
        columns += blocks[b].lanes * W;
      }
      if (is_first) {  // the constant feature
#pragma GCC unroll 16
        for (int r = 0; r < n; r++) acc[r][0] += (T)1, acc[r][1] += (T)1;
        store_tile<T, n>(acc, to, W);
      } else {
        add_tile<T, n>(acc, to, W);
      }
    });
  }
}

// The factors of the tokens of a sub-chunk, or ones.
template <class T>
struct LaneFactors {
  Vec<T> low = broadcast((T)1), high = low;
  LaneFactors(const T* factors, int64_t sub) {
    if (factors) low = load(factors + sub * WIDE<T>), high = load(factors + sub * WIDE<T> + LANES<T>);
  }
};

// out[sub] = (phi(x) state)^T, [columns][W], for each sub-chunk of W tokens that x[sub], [dim][W], holds. Without a state `out`
// is left as it is. With others, their pairs with x too. `about` is that of queries; keys come without the centre. `out` has
// f.columns per sub-chunk, of which the first `columns` are written; `panel` has room for the features of MOST blocks in
// columns, or of all channels.
template <class T>
void read(const Features<T>& f, const T* state, const T* x, const FeatureMasks<T>& masks, const Centre<T>& about, int subs,
          T* out, int columns, const Others<T>* others, T* panel, Prefetcher& prefetcher) {
  FM_REQUIRE(f.order <= 2 && (state || others) && columns <= f.columns);
  FM_REQUIRE(!about.at || (f.order == 2 && about.value && about.slope && !masks.features && !others));
  constexpr int W = WIDE<T>;
  const Tiles tiles(state ? columns : 0);
  Block group[Features<T>::MOST];
  for (int b = 0; b < f.linear; b++) group[b] = f.block(b);
  if (others) others->make_rows(f, 0, f.linear);
  for (int64_t sub = 0; sub < subs; sub++) {
    const T* phi = x + sub * f.dim * W;
    if (masks.drop(true)) {
      T* p = panel;
      for (int b = 0; b < f.linear; b++) p = column_features(f, b, group[b], phi, masks, sub, p);
      phi = panel;
    }
    const LaneFactors<T> value(about.value, sub), slope(about.slope, sub);
    for (int t = 0; t < tiles.count; t++) {
      const int first = tiles.start(t);
      prefetcher.prefetch_part(subs * tiles.count);
      with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
        constexpr int n = decltype(R)::value;
        Vec<T> acc[n][2];
        clear<T, n>(acc);
        multiply<T, n>(acc, state + f.offset(0) + first * f.pitch(0), 1, f.pitch(0), phi, W, f.dim);
#pragma GCC unroll 16
        for (int r = 0; r < n; r++) {
          acc[r][0] = acc[r][0] * slope.low + value.low * state[first + r];
          acc[r][1] = acc[r][1] * slope.high + value.high * state[first + r];
        }
        store_tile<T, n>(acc, out + (sub * f.columns + first) * W, W);
      });
    }
    if (others) add_pairs(*others, group, f.linear, phi, sub, true);
  }
  for (int i = f.linear, stop; i < f.blocks; i = stop) {
    stop = (int)min(i + f.GROUP, f.blocks);
    for (int b = i; b < stop; b++) group[b - i] = f.block(b);
    if (others) others->make_rows(f, i, stop);
    for (int64_t sub = 0; sub < subs; sub++) {
      const T* xs = x + sub * f.dim * W;
      T* p = panel;
      for (int b = i; b < stop; b++) p = column_features(f, b, group[b - i], xs, masks, sub, p);
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
      if (others) add_pairs(*others, group, stop - i, panel, sub, false);
    }
  }
}

// d_x += c (f'(b) w . (the constants of the state) + `along`): the gradient by b = x . c. `along` is x . (state w) for features
// of degree 1. The constants are left out if null.
template <class T>
void add_along_centre(const Features<T>& f, const Centre<T>& about, const T* constants, const T* w, const Vec<T> (&along)[2],
                      int64_t sub, T* d_x) {
  FM_REQUIRE(about.at && about.slope);
  constexpr int W = WIDE<T>, L = LANES<T>;
  const LaneFactors<T> slope(about.slope, sub);
  Vec<T> low{}, high{};
  for (int j = 0; constants && j < f.columns; j++)
    low += load(w + j * W) * constants[j], high += load(w + j * W + L) * constants[j];
  low = low * slope.low + along[0], high = high * slope.high + along[1];
  for (int m = 0; m < f.dim; m++) {
    T* to = d_x + m * W;
    store(to, load(to) + low * about.at[m]), store(to + L, load(to + L) + high * about.at[m]);
  }
}

// d_x[sub] += J_phi(x)^T (state w): the gradient of x from that of read(x), which is w[sub], [columns][W], and from those of
// the pairs with others. The state may be null.
template <class T>
void read_vjp(const Features<T>& f, const T* state, const T* x, const FeatureMasks<T>& masks, const Centre<T>& about,
              const T* w, int subs, T* d_x, const Others<T>* others, Prefetcher& prefetcher) {
  FM_REQUIRE(f.order <= 2 && (state || others));
  FM_REQUIRE(!about.at || (f.order == 2 && about.value && about.slope && !masks.features && !others));
  constexpr int W = WIDE<T>, L = LANES<T>;
  for (int i = 0; i < f.blocks; i += f.GROUP) {
    const int stop = (int)min(i + f.GROUP, f.blocks);
    Block group[Features<T>::GROUP];
    for (int b = i; b < stop; b++) group[b - i] = f.block(b);
    if (others) others->make_rows(f, i, stop);
    for (int64_t sub = 0; sub < subs; sub++) {
      const T *xs = x + sub * f.dim * W, *ws = w + sub * f.columns * W;
      T* ds = d_x + sub * f.dim * W;
      const int seen = others ? others->first(sub) : 0, seen_end = others ? others->last(sub) : 0;
      const LaneFactors<T> slope(about.slope, sub);
      for (int b = i; b < stop; b++) {
        const Block block = group[b - i];
        Vec<T> along[2] = {};
        const Tiles tiles(block.lanes);
        const bool drops = masks.drop(block.shift < 0);
        prefetcher.prefetch_part(subs * f.blocks);
        for (int t = 0; t < tiles.count; t++) {
          const int first = block.first + tiles.start(t);
          with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
            constexpr int n = decltype(R)::value;
            Vec<T> acc[n][2];
            clear<T, n>(acc);
            if (state) multiply<T, n>(acc, state + f.offset(b) + tiles.start(t), f.pitch(b), 1, ws, W, f.columns);
            if (seen_end > seen)
              multiply<T, n>(acc, others->rows_of(b - i) + (int64_t)seen * W + tiles.start(t), W, 1,
                             others->pairs_of(sub) + (int64_t)seen * W, W, seen_end - seen);
            if (drops) {
              Vec<T> copy[n][2];  // the compiler would keep acc itself in memory if its address were taken
#pragma GCC unroll 16
              for (int r = 0; r < n; r++) copy[r][0] = acc[r][0], copy[r][1] = acc[r][1];
              keep_tile(masks, masks.features + b * W + tiles.start(t), sub * W, n, copy);
#pragma GCC unroll 16
              for (int r = 0; r < n; r++) acc[r][0] = copy[r][0], acc[r][1] = copy[r][1];
            }
#pragma GCC unroll 16
            for (int r = 0; r < n; r++) {
              T* left = ds + (first + r) * W;
              if (block.shift < 0) {
                const T* y = xs + (first + r) * W;
                along[0] += acc[r][0] * load(y), along[1] += acc[r][1] * load(y + L);
                store(left, load(left) + acc[r][0] * slope.low);
                store(left + L, load(left + L) + acc[r][1] * slope.high);
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
        if (about.at && block.shift < 0) add_along_centre(f, about, b == 0 ? state : nullptr, ws, along, sub, ds);
      }
    }
  }
}

}  // namespace FM_LEVEL
