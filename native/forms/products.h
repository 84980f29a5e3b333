// The products of the dense form of one head, tile by tile, in the type of the arithmetic.
#pragma once
#include "forms/decay.h"
#include "forms/keys.h"
#include "forms/queries.h"

namespace FM_LEVEL {

template <class T>
struct DenseTile {
  static constexpr int KEYS = 16 * ROWS;
  static constexpr int QUERIES = (int)((96 + WIDE<T> - 1) / WIDE<T> * WIDE<T>);
};

template <class T>
struct Products {
  using Number = T;
  static constexpr int W = WIDE<T>, KEYS = DenseTile<T>::KEYS, QUERIES = DenseTile<T>::QUERIES;
  static constexpr int64_t STRIDE = (int64_t)KEYS * W;  // of a sub-chunk
  static constexpr bool ROUNDS_GRADS = false;
  const Sizes<T>& sizes;
  const KeyChunk<T>& keys;
  const QueryChunk<T>& queries;
  DecayChunk<T> decay;  // of all tokens
  bool decays = false;
  T *weights, *slopes;

  Products(const Sizes<T>& s, const KeyChunk<T>& keys, const QueryChunk<T>& queries) : sizes(s), keys(keys), queries(queries) {}
  void take(Workspace& workspace, int64_t max_keys, bool grads) {
    decay.take(workspace, max_keys, KEYS);
    weights = workspace.take<T>((int64_t)KEYS * QUERIES);
    if (grads) slopes = workspace.take<T>((int64_t)KEYS * QUERIES);
  }
  void load_keys(const Head& h, bool) {
    decays = DecayChunk<T>::used(*h.call);
    if (decays) decay.load_sums(h, 0, h.keys);
    for (int64_t a = 0; a < keys.count; a += KEYS)
      pack(keys.u + a * sizes.u_pitch, sizes.u_pitch, (int)min(KEYS, keys.count - a), sizes.shape.columns,
           keys.packed + a * sizes.shape.columns);
  }
  void load_queries(bool) {}
  Keys<T> tile(int64_t a) const {
    return {keys.x + a * sizes.x_pitch,
            sizes.x_pitch,
            keys.u + a * sizes.u_pitch,
            sizes.u_pitch,
            keys.packed + a * sizes.shape.columns,
            (int)min(KEYS, keys.count - a),
            keys.are_finite};
  }
  // For the queries of a sub-chunk and the keys of a tile that they see; null without decay.
  const T* fade_pairs(int64_t query, int64_t key, int64_t position) {
    return decays ? decay.fade_pairs(query, key, visible<T>(tile(key).count, position)) : nullptr;
  }

  // Adds the contribution of the tile of keys from `key` on to the sub-chunk s, from `query` on.
  void add_outputs(int s, int64_t query, int64_t key, int64_t position) {
    const T* fading = fade_pairs(query, key, position);
    weigh<T>(sizes.shape, tile(key), queries.x_transposed_of(s), position, fading, weights, nullptr);
    weighted_sum(sizes.shape, tile(key), weights, position, queries.out_of(s));
  }
  // The same of the gradients of queries; keeps what those of the keys need.
  void add_query_grads(int s, int64_t query, int64_t key, int64_t position) {
    const Keys<T> t = tile(key);
    const T* fading = fade_pairs(query, key, position);
    T *of_weights = weights + s * STRIDE, *of_slopes = slopes + s * STRIDE;
    weigh(sizes.shape, t, queries.x_transposed_of(s), position, fading, of_weights, of_slopes);
    argument_grads(sizes.shape, t, queries.w_transposed_of(s), position, of_slopes);
    add_products(t.x, t.x_pitch, sizes.shape.dim, (const T*)of_slopes, visible_to_first_half<T>(t.count, position),
                 visible<T>(t.count, position), queries.d_x_of(s));
  }
  // The gradients of a tile of keys, from all queries of the chunk.
  void add_key_grads(int64_t key, int64_t position, T* d_x, T* d_u) {
    const int count = tile(key).count;
    key_grads(count, position, slopes, STRIDE, queries.subs, queries.x, sizes.x_pitch, sizes.shape.dim, d_x, sizes.dim_pitch);
    key_grads(count, position, weights, STRIDE, queries.subs, queries.w, sizes.u_pitch,
              decays ? sizes.shape.columns : sizes.value_dim, d_u, sizes.u_pitch);
  }
};

}  // namespace FM_LEVEL
