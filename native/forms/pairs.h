// Inside a causal chunk where features are dropped: sums over the features of pairs of tokens, and their gradients.
//
// Own tokens lie in lanes, in sub-chunks of W; the others, of the other side, in rows.
#pragma once
#include "forms/decay.h"

namespace FM_LEVEL {

template <class T>
struct PairChunk {
  static constexpr int W = WIDE<T>;
  T *rows, *pairs;
  int64_t stride;

  void take(Workspace& workspace, const Sizes<T>& s) {
    stride = (int64_t)s.chunk * W;
    rows = workspace.take<T>(Features<T>::MOST * stride);
    pairs = workspace.take<T>((s.chunk + W - 1) / W * stride);
  }
  Others<T> others(const T* x, int64_t x_pitch, int count, const FeatureMasks<T>& masks, bool are_later) const {
    return {x, x_pitch, count, masks, are_later, rows, pairs, stride};
  }

  // pairs[other][W] = u[other] . w: gradients of the sums over features, from values or their gradients on both sides.
  void make_grads(const Others<T>& others, const T* u, int64_t u_pitch, const T* w, int columns, int subs,
                  const DecayChunk<T>* decay) {
    for (int64_t s = 0; s < subs; s++) {
      const Tiles tiles(others.last(s) - others.first(s));
      for (int t = 0; t < tiles.count; t++) {
        const int64_t first = others.first(s) + tiles.start(t);
        with_rows(tiles.rows(t), [&](auto R) __attribute__((always_inline)) {
          constexpr int n = decltype(R)::value;
          Vec<T> acc[n][2];
          clear<T, n>(acc);
          multiply<T, n>(acc, u + first * u_pitch, 1, u_pitch, w + s * columns * W, W, columns);
          store_tile<T, n>(acc, others.pairs_of(s) + first * W, W);
        });
      }
    }
    hide(others, subs, decay);
  }
  // Makes pairs that causality hides zeros, and fades the others.
  void hide(const Others<T>& others, int subs, const DecayChunk<T>* decay) const {
    for (int64_t s = 0; s < subs; s++)
      for (int64_t i = 0; i < others.count; i++) {
        T* row = others.pairs_of(s) + i * W;
        if (i < others.first(s) || i >= others.last(s)) {
          memset(row, 0, W * sizeof(T));
          continue;
        }
        if (decay) decay->fade_row(row, s * W, i, others.are_later);
        const int64_t here = i - s * W;  // the lane of its own position
        for (int64_t w = 0; w < W; w++)
          if (others.are_later ? w > here : w < here) row[w] = 0;
      }
  }
  // out[sub][columns][W] += u^T pairs, for u packed or in rows.
  void add_sums(const Others<T>& others, const Shape<T>& shape, const T* u, int64_t u_pitch, const T* packed, int subs, T* out,
                bool are_finite = true) const {
    const Keys<T> rows{others.x, others.x_pitch, u, u_pitch, packed, others.count, are_finite};
    for (int64_t s = 0; s < subs; s++)
      weighted_sum(shape, rows, others.pairs_of(s), others.are_later ? UNMASKED : s * W, out + s * shape.columns * W);
  }
};

}  // namespace FM_LEVEL
