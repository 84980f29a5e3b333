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
  bool is_causal = false;
  T *weights, *slopes, *shares = nullptr;

  Products(const Sizes<T>& s, const KeyChunk<T>& keys, const QueryChunk<T>& queries) : sizes(s), keys(keys), queries(queries) {}
  void take(Workspace& workspace, int64_t max_keys, bool grads) {
    decay.take(workspace, max_keys, KEYS);
    weights = workspace.take<T>((int64_t)KEYS * QUERIES);
    if (!grads) return;
    slopes = workspace.take<T>((int64_t)KEYS * QUERIES);
    shares = workspace.take<T>(STRIDE);
  }
  void load_keys(const Head& h, bool) {
    decays = DecayChunk<T>::used(*h.call), is_causal = h.call->is_causal;
    if (decays) decay.load_sums(h, 0, h.keys);
    for (int64_t a = 0; a < keys.count; a += KEYS)
      pack(keys.u + a * sizes.u_pitch, sizes.u_pitch, (int)min(KEYS, keys.count - a), sizes.shape.columns,
           keys.packed + a * sizes.shape.columns);
  }
  void load_queries(bool) {}
  // The keys `begin` to `end`, all of one tile.
  Keys<T> tile(Range part) const {
    const int64_t start = part.begin / KEYS * KEYS;
    return {keys.x + part.begin * sizes.x_pitch,
            sizes.x_pitch,
            keys.u + part.begin * sizes.u_pitch,
            sizes.u_pitch,
            keys.packed + start * sizes.shape.columns,
            (int)(part.end - part.begin),
            keys.are_finite,
            (int)(part.begin - start),
            (int)min(KEYS, keys.count - start)};
  }
  // The factors for the queries of a sub-chunk and the keys of a tile that they see; null without decay.
  const T* fade_pairs(int64_t query, Range part, int64_t position) {
    if (!decays) return nullptr;
    return decay.fade_pairs(query, part.begin, visible<T>((int)(part.end - part.begin), position), is_causal);
  }
  // The keys that the decay does not hide from the queries `begin` to `end`.
  Range visible_keys(const Head& h, int64_t begin, int64_t end) const {
    return decays ? decay.visible_keys(begin, end, is_causal, h.lowest) : Range{0, h.keys};
  }

  // Adds the contribution of the keys `part` of a tile to the sub-chunk s, from `query` on, which is at `position` relative to
  // the first of them.
  void add_outputs(int s, int64_t query, Range part, int64_t position) {
    const Keys<T> t = tile(part);
    const T* fading = fade_pairs(query, part, position);
    weigh<T>(sizes.shape, t, queries.x_transposed_of(s), position, fading, weights, nullptr);
    weighted_sum(sizes.shape, t, weights, position, queries.out_of(s));
  }
  // The same for the gradients of queries and of the sums of decays. Keeps what the gradients of the keys need.
  void add_query_grads(int s, int64_t query, Range part, int64_t position, T* d_sums) {
    const Keys<T> t = tile(part);
    const T* fading = fade_pairs(query, part, position);
    T *of_weights = weights + s * STRIDE, *of_slopes = slopes + s * STRIDE;
    weigh(sizes.shape, t, queries.x_transposed_of(s), position, fading, of_weights, of_slopes);
    argument_grads(sizes.shape, t, queries.w_transposed_of(s), position, of_slopes, decays ? of_weights : nullptr, shares);
    if (decays) decay.add_sum_grads(shares, query, part.begin, t.count, is_causal, d_sums);
    add_products(t.x, t.x_pitch, sizes.shape.dim, (const T*)of_slopes, visible_to_first_half<T>(t.count, position),
                 visible<T>(t.count, position), queries.d_x_of(s));
  }
  // The gradients of these keys, from all queries of the chunk.
  void add_key_grads(Range part, int64_t position, T* d_x, T* d_u) {
    const int count = (int)(part.end - part.begin);
    key_grads(count, position, slopes, STRIDE, queries.subs, queries.x, sizes.x_pitch, sizes.shape.dim, d_x, sizes.dim_pitch);
    key_grads(count, position, weights, STRIDE, queries.subs, queries.w, sizes.u_pitch, sizes.value_dim, d_u, sizes.u_pitch);
  }
};

}  // namespace FM_LEVEL
