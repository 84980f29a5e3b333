// The dense form of one whole head, for short sequences and for orders without a state: tiles of queries against tiles of keys.
#pragma once
#include "forms/decay.h"
#include "forms/keys.h"
#include "forms/queries.h"

namespace FM_LEVEL {

template <class T>
struct DenseForm {
  static constexpr int W = WIDE<T>;
  static constexpr int KEYS = 16 * ROWS;                       // of a tile
  static constexpr int QUERIES = (int)((96 + W - 1) / W * W);  // of a tile, for gradients
  const Sizes<T>& sizes;
  bool grads;
  KeyChunk<T> keys;  // all of them
  QueryChunk<T> queries;
  DecayChunk<T> decay;  // of all tokens
  bool decays = false;
  T *weights_, *slopes;

  DenseForm(const Sizes<T>& s, bool grads) : sizes(s), grads(grads) {}
  void take(Workspace& workspace, int64_t max_keys) {
    keys.take(workspace, sizes, max_keys);
    queries.take(workspace, sizes, QUERIES, grads);
    decay.take(workspace, max_keys, KEYS);
    weights_ = workspace.take<T>((int64_t)KEYS * QUERIES);
    if (grads) slopes = workspace.take<T>((int64_t)KEYS * QUERIES);
  }
  void load_keys(const Head& h) {
    keys.load_tokens(h, 0, h.keys, false);
    decays = DecayChunk<T>::used(*h.call);
    if (decays) decay.load_sums(h, 0, h.keys);
    for (int64_t a = 0; a < keys.count; a += KEYS)
      pack(keys.u + a * sizes.u_pitch, sizes.u_pitch, (int)min(KEYS, keys.count - a), sizes.shape.columns,
           keys.packed + a * sizes.shape.columns);
  }
  Keys<T> tile(int64_t a) const {
    return {keys.x + a * sizes.x_pitch,
            sizes.x_pitch,
            keys.u + a * sizes.u_pitch,
            sizes.u_pitch,
            keys.packed + a * sizes.shape.columns,
            (int)min(KEYS, keys.count - a)};
  }
  // The position of a query relative to the first key of a tile.
  static int64_t diagonal(const Head& h, int64_t query, int64_t key) { return h.call->is_causal ? query - key : UNMASKED; }

  // For the queries of a sub-chunk and the keys of a tile that they see; null without decay.
  const T* fade_pairs(int64_t query, int64_t key, int64_t position) {
    return decays ? decay.fade_pairs(query, key, visible<T>(tile(key).count, position)) : nullptr;
  }

  void outputs(const Head& h, int64_t begin, int64_t end) {
    for (int64_t g = 0; g < h.groups; g++)
      for (int64_t a = begin; a < end; a += QUERIES) {
        queries.load_tokens(h, g, a, min(end, a + QUERIES), false, false);
        memset(queries.out, 0, (int64_t)queries.subs * sizes.shape.columns * W * sizeof(T));
        for (int64_t k = 0; k < keys.count; k += KEYS)
          for (int s = 0; s < queries.subs; s++) {
            const int64_t position = diagonal(h, a + s * W, k);
            if (position + W <= 0) continue;
            const T* fading = fade_pairs(a + s * W, k, position);
            weights(sizes.shape, tile(k), queries.x_transposed_of(s), position, fading, weights_);
            weighted_sum(sizes.shape, tile(k), weights_, position, queries.out_of(s));
          }
        queries.store_outputs(h);
      }
  }

  // d_x, [keys][dim_pitch], and d_u, [keys][u_pitch], are added to; d_scale, [groups], too.
  void gradients(const Head& h, int64_t begin, int64_t end, T* d_x, T* d_u, double* d_scale) {
    const Shape<T>& shape = sizes.shape;
    constexpr int64_t stride = (int64_t)KEYS * W;
    for (int64_t g = 0; g < h.groups; g++)
      for (int64_t a = begin; a < end; a += QUERIES) {
        queries.load_tokens(h, g, a, min(end, a + QUERIES), true, false);
        memset(queries.d_x, 0, (int64_t)queries.subs * shape.dim * W * sizeof(T));
        for (int64_t k = 0; k < keys.count; k += KEYS) {
          const Keys<T> t = tile(k);
          const int64_t position = diagonal(h, a, k);
          if (position + queries.count <= 0) break;
          for (int s = 0; s < queries.subs; s++) {
            const int64_t mine = position + s * W;
            T *ws = weights_ + s * stride, *ss = slopes + s * stride;
            const T* fading = fade_pairs(a + s * W, k, mine);
            weights(shape, t, queries.x_transposed_of(s), mine, fading, ws);
            argument_grads(shape, t, queries.x_transposed_of(s), queries.w_transposed_of(s), mine, fading, ss);
            query_grads(shape, t, ss, mine, queries.d_x_of(s));
          }
          key_grads(t.count, position, slopes, stride, queries.subs, queries.x, sizes.x_pitch, shape.dim,
                    d_x + k * sizes.dim_pitch, sizes.dim_pitch);
          key_grads(t.count, position, weights_, stride, queries.subs, queries.w, sizes.u_pitch,
                    decays ? shape.columns : sizes.value_dim, d_u + k * sizes.u_pitch, sizes.u_pitch);
        }
        d_scale[g] += queries.store_grads(h);
      }
  }
};

}  // namespace FM_LEVEL
