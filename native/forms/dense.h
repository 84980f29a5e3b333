// The dense form of one whole head, for short sequences and for orders without a state: tiles of queries against tiles of keys.
#pragma once
#include "forms/products_bf16.h"

namespace FM_LEVEL {

template <class P>  // Products<T>, or Bf16Products
struct DenseForm {
  using T = typename P::Number;
  static constexpr int W = WIDE<T>, KEYS = P::KEYS, QUERIES = P::QUERIES;
  const Sizes<T>& sizes;
  bool grads;
  KeyChunk<T> keys;  // all of them
  QueryChunk<T> queries;
  P products;

  DenseForm(const Sizes<T>& s, bool grads) : sizes(s), grads(grads), products(s, keys, queries) {}
  DenseForm(const DenseForm&) = delete;
  void take(Workspace& workspace, int64_t max_keys) {
    keys.take(workspace, sizes, max_keys);
    queries.take(workspace, sizes, QUERIES, grads);
    queries.rounds_grads = P::ROUNDS_GRADS;
    products.take(workspace, max_keys, grads);
  }
  void load_keys(const Head& h) {
    keys.load_tokens(h, 0, h.keys, false);
    products.load_keys(h, grads);
  }
  // The position of a query relative to the first key of a tile.
  static int64_t diagonal(const Head& h, int64_t query, int64_t key) { return h.call->is_causal ? query - key : UNMASKED; }
  // The keys that some of the queries `begin` to `end` see.
  Range seen(const Head& h, int64_t begin, int64_t end) const {
    const Range range = products.visible_keys(h, begin, end);
    return h.call->is_causal ? Range{range.begin, min(range.end, end)} : range;
  }
  // Calls f(part) for the parts of tiles that `keys` consist of.
  template <class F>
  static void each_part(Range keys, const F& f) {
    for (int64_t k = keys.begin; k < keys.end; k = k / KEYS * KEYS + KEYS) f(Range{k, min(k / KEYS * KEYS + KEYS, keys.end)});
  }

  void outputs(const Head& h, int64_t begin, int64_t end) {
    for (int64_t g = 0; g < h.groups; g++)
      for (int64_t a = begin; a < end; a += QUERIES) {
        const int64_t stop = min(end, a + QUERIES);
        queries.load_tokens(h, g, a, stop, false, false);
        products.load_queries(false);
        memset(queries.out, 0, (int64_t)queries.subs * sizes.shape.columns * W * sizeof(T));
        Range by_sub[QUERIES / W];
        for (int s = 0; s < queries.subs; s++) by_sub[s] = seen(h, a + s * W, min(stop, a + (s + 1) * W));
        each_part(seen(h, a, stop), [&](Range part) {
          for (int s = 0; s < queries.subs; s++) {
            const Range own{max(part.begin, by_sub[s].begin), min(part.end, by_sub[s].end)};
            if (own.begin < own.end) products.add_outputs(s, a + s * W, own, diagonal(h, a + s * W, own.begin));
          }
        });
        queries.store_outputs(h);
      }
  }

  // Adds to d_x, [keys][dim_pitch], d_u, [keys][u_pitch], d_scale, [groups], and with decay to d_sums, [keys].
  void gradients(const Head& h, int64_t begin, int64_t end, T* d_x, T* d_u, T* d_sums, double* d_scale) {
    for (int64_t g = 0; g < h.groups; g++)
      for (int64_t a = begin; a < end; a += QUERIES) {
        const int64_t stop = min(end, a + QUERIES);
        queries.load_tokens(h, g, a, stop, true, false);
        products.load_queries(true);
        memset(queries.d_x, 0, (int64_t)queries.subs * sizes.shape.dim * W * sizeof(T));
        each_part(seen(h, a, stop), [&](Range part) {
          const int64_t position = diagonal(h, a, part.begin);
          for (int s = 0; s < queries.subs; s++) products.add_query_grads(s, a + s * W, part, position + s * W, d_sums);
          products.add_key_grads(part, position, d_x + part.begin * sizes.dim_pitch, d_u + part.begin * sizes.u_pitch);
        });
        d_scale[g] += queries.store_grads(h);
      }
  }
};

}  // namespace FM_LEVEL
