// The products of the dense form of one head where all tensors are bf16: numbers are rounded to bf16, sums are taken in fp32.
//
// Values are bf16 already. Rounded are the normalized queries and keys, the weights (numerator and denominator sum the same
// ones), and in the backward pass the gradients of numerators and of s. Numbers that are subtracted stay in fp32.
#pragma once
#include "forms/products.h"
#include "tiles/dense_bf16.h"

#if defined(FM_BF16_PAIRS)
namespace FM_LEVEL {

struct Bf16Products {
  using Number = float;
  static constexpr int W = WIDE<float>, KEYS = DenseTile<float>::KEYS, QUERIES = DenseTile<float>::QUERIES;
  static constexpr int64_t STRIDE = (int64_t)KEYS * QUERY_PAIRS;  // of a sub-chunk, in pairs of queries
  static constexpr bool ROUNDS_GRADS = true;
  const Sizes<float>& sizes;
  const KeyChunk<float>& keys;
  const QueryChunk<float>& queries;
  const int dim_pairs, value_pairs;
  // Keys, in pairs of channels and of keys; queries, [sub][pairs of channels][W] and in pairs of queries; the last two of
  // each for gradients only, and w is the gradient of the numerators.
  Pair *k_channels, *u_keys, *k_keys, *v_channels;
  Pair *q_columns, *w_columns, *q_queries, *w_queries;
  Pair *weights, *slopes, *slopes_by_keys;
  float* derivatives;

  // A decay multiplies weights by numbers far apart, and its gradient is a difference of large sums.
  static bool serve(const FmCall& c) {
    return c.q.type == FM_BF16 && c.k.type == FM_BF16 && c.v.type == FM_BF16 && c.o.type == FM_BF16 && !c.log_decay.data;
  }
  Bf16Products(const Sizes<float>& s, const KeyChunk<float>& keys, const QueryChunk<float>& queries)
      : sizes(s), keys(keys), queries(queries), dim_pairs((s.shape.dim + 1) / 2), value_pairs((s.value_dim + 1) / 2) {}
  void take(Workspace& workspace, int64_t max_keys, bool grads) {
    const int64_t key_pairs = (max_keys + 1) / 2, query_pairs = QUERIES / 2;
    k_channels = workspace.take<Pair>(2 * key_pairs * dim_pairs);
    u_keys = workspace.take<Pair>(key_pairs * sizes.u_pitch);
    q_columns = workspace.take<Pair>((int64_t)QUERIES * dim_pairs);
    weights = workspace.take<Pair>(max(QUERIES / W * STRIDE, (int64_t)KEYS / 2 * W));
    if (!grads) return;
    k_keys = workspace.take<Pair>(key_pairs * sizes.dim_pitch);
    v_channels = workspace.take<Pair>(2 * key_pairs * value_pairs);
    w_columns = workspace.take<Pair>((int64_t)QUERIES * value_pairs);
    q_queries = workspace.take<Pair>(query_pairs * sizes.dim_pitch);
    w_queries = workspace.take<Pair>(query_pairs * sizes.u_pitch);
    slopes = workspace.take<Pair>(QUERIES / W * STRIDE);
    slopes_by_keys = workspace.take<Pair>((int64_t)KEYS / 2 * W);
    derivatives = workspace.take<float>((int64_t)KEYS * W);
  }
  void load_keys(const Head&, bool grads) {
    const int64_t count = keys.count;
    const int dim = sizes.shape.dim, value_dim = sizes.value_dim;
    pair_channels(keys.x, sizes.x_pitch, count, dim, k_channels, dim_pairs);
    pair_rows(keys.u, sizes.u_pitch, count, sizes.shape.columns, u_keys, sizes.u_pitch);
    if (grads) pair_rows(keys.x, sizes.x_pitch, count, dim, k_keys, sizes.dim_pitch);
    if (grads) pair_channels(keys.u, sizes.u_pitch, count, value_dim, v_channels, value_pairs);
    if (count % 2 == 0) return;  // the other one of the last pair
    memset(k_channels + count * dim_pairs, 0, dim_pairs * sizeof(Pair));
    if (grads) memset(v_channels + count * value_pairs, 0, value_pairs * sizeof(Pair));
  }
  void load_queries(bool grads) {
    const int dim = sizes.shape.dim, value_dim = sizes.value_dim;
    for (int64_t s = 0; s < queries.subs; s++) {
      pair_rows(queries.x_transposed_of(s), W, dim, W, q_columns + s * dim_pairs * W, W);
      if (grads) pair_rows(queries.w_transposed_of(s), W, value_dim, W, w_columns + s * value_pairs * W, W);
    }
    if (!grads) return;
    pair_rows(queries.x, sizes.x_pitch, queries.subs * W, dim, q_queries, sizes.dim_pitch);
    pair_rows(queries.w, sizes.u_pitch, queries.subs * W, value_dim, w_queries, sizes.u_pitch);
  }
  PairedKeys tile(int64_t a) const {
    return {k_channels + a * dim_pairs, v_channels + a * value_pairs, dim_pairs, value_pairs, (int)min(KEYS, keys.count - a)};
  }
  const Pair* q_of(int64_t s) const { return q_columns + s * dim_pairs * W; }

  // Without decays the parts are whole tiles.
  void add_outputs(int s, int64_t, Range part, int64_t position) {
    const int64_t key = part.begin;
    const PairedKeys t = tile(key);
    weigh(sizes.shape, t, q_of(s), position, weights);
    if (!keys.are_finite) {
      const auto weight = [&](int64_t n, int64_t w) { return from_bf16((uint16_t)(weights[n / 2 * W + w] >> n % 2 * 16)); };
      return sum_of_visible<float>(sizes.shape.columns, keys.u + key * sizes.u_pitch, sizes.u_pitch,
                                   visible<float>(t.count, position), position, weight, queries.out_of(s));
    }
    add_products(u_keys + key / 2 * sizes.u_pitch, sizes.u_pitch, sizes.shape.columns, (const Pair*)weights,
                 pairs_visible_to_first_half(t.count, position), visible_pairs(t.count, position), queries.out_of(s));
  }
  Range visible_keys(const Head& h, int64_t, int64_t) const { return {0, h.keys}; }
  void add_query_grads(int s, int64_t, Range part, int64_t position, float*) {
    const int64_t key = part.begin;
    const PairedKeys t = tile(key);
    weigh(sizes.shape, t, q_of(s), position, weights + s * STRIDE, derivatives);
    argument_grads(sizes.value_dim, t, w_columns + (int64_t)s * value_pairs * W,
                   queries.w_transposed_of(s) + (int64_t)sizes.value_dim * W, position, derivatives, slopes_by_keys,
                   slopes + s * STRIDE);
    add_products(k_keys + key / 2 * sizes.dim_pitch, sizes.dim_pitch, sizes.shape.dim, (const Pair*)slopes_by_keys,
                 pairs_visible_to_first_half(t.count, position), visible_pairs(t.count, position), queries.d_x_of(s));
  }
  void add_key_grads(Range part, int64_t position, float* d_x, float* d_u) {
    const int count = tile(part.begin).count;
    key_grads(count, position, slopes, STRIDE, queries.subs, q_queries, sizes.dim_pitch, sizes.shape.dim, d_x, sizes.dim_pitch);
    key_grads(count, position, weights, STRIDE, queries.subs, w_queries, sizes.u_pitch, sizes.value_dim, d_u, sizes.u_pitch);
  }
};

}  // namespace FM_LEVEL
#endif
