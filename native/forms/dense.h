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

  void outputs(const Head& h, int64_t begin, int64_t end) {
    for (int64_t g = 0; g < h.groups; g++)
      for (int64_t a = begin; a < end; a += QUERIES) {
        queries.load_tokens(h, g, a, min(end, a + QUERIES), false, false);
        products.load_queries(false);
        memset(queries.out, 0, (int64_t)queries.subs * sizes.shape.columns * W * sizeof(T));
        for (int64_t k = 0; k < keys.count; k += KEYS)
          for (int s = 0; s < queries.subs; s++) {
            const int64_t position = diagonal(h, a + s * W, k);
            if (position + W > 0) products.add_outputs(s, a + s * W, k, position);
          }
        queries.store_outputs(h);
      }
  }

  // d_x, [keys][dim_pitch], and d_u, [keys][u_pitch], are added to; d_scale, [groups], too.
  void gradients(const Head& h, int64_t begin, int64_t end, T* d_x, T* d_u, double* d_scale) {
    for (int64_t g = 0; g < h.groups; g++)
      for (int64_t a = begin; a < end; a += QUERIES) {
        queries.load_tokens(h, g, a, min(end, a + QUERIES), true, false);
        products.load_queries(true);
        memset(queries.d_x, 0, (int64_t)queries.subs * sizes.shape.dim * W * sizeof(T));
        for (int64_t k = 0; k < keys.count; k += KEYS) {
          const int64_t position = diagonal(h, a, k);
          if (position + queries.count <= 0) break;
          for (int s = 0; s < queries.subs; s++) products.add_query_grads(s, a + s * W, k, position + s * W);
          products.add_key_grads(k, position, d_x + k * sizes.dim_pitch, d_u + k * sizes.u_pitch);
        }
        d_scale[g] += queries.store_grads(h);
      }
  }
};

}  // namespace FM_LEVEL
