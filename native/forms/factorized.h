// The factorized form of one head: sums into a state, and reads of it, chunk by chunk.
//
// A state is summed in order for the outputs and the queries' gradients, in reverse for the keys'. When causal, a chunk's
// own keys are seen in the dense form, and are added to the state behind it. Where features are dropped the dense form has no
// shortcut past them: the pairs of a chunk are summed over features too.
#pragma once
#include "forms/decay.h"
#include "forms/keys.h"
#include "forms/pairs.h"
#include "forms/queries.h"

#include <initializer_list>

namespace FM_LEVEL {

enum class Pass { outputs, query_grads, key_grads };

template <class T>
struct FactorizedForm {
  static constexpr int W = WIDE<T>;
  const Sizes<T>& sizes;
  Pass pass;
  KeyChunk<T> keys;
  QueryChunk<T> queries;
  DecayChunk<T> decay;
  bool decays = false;
  FeatureWords<T> words;
  PairChunk<T> pairs;  // only where features are dropped
  T *panel, *weights_, *slopes;
  T *u_transposed, *u_faded, *x_transposed, *d_x_transposed, *d_u_transposed, *d_x, *d_u;  // of keys, only for their gradients
  Prefetcher prefetcher;
  const FmCall* call = nullptr;
  double* d_scale = nullptr;  // [groups], added to

  FactorizedForm(const Sizes<T>& s, Pass pass) : sizes(s), pass(pass) {}
  void take(Workspace& workspace) {
    const int64_t chunk = sizes.chunk, dim = sizes.shape.dim, columns = sizes.shape.columns;
    keys.take(workspace, sizes, chunk);
    queries.take(workspace, sizes, chunk, pass != Pass::outputs);
    decay.take(workspace, chunk, chunk);
    panel = workspace.take<T>(max(chunk, max(Features<T>::GROUP * W, dim)) * W);
    words.take(workspace, sizes.features);
    if (sizes.drops) pairs.take(workspace, sizes);
    weights_ = workspace.take<T>(chunk * (pass == Pass::key_grads ? chunk : W));
    if (pass != Pass::key_grads) return;
    slopes = workspace.take<T>(chunk * chunk);
    u_transposed = workspace.take<T>(chunk * columns);
    if (sizes.drops) u_faded = workspace.take<T>(chunk * columns);
    x_transposed = workspace.take<T>(sizes.transposed_size(chunk));
    d_x_transposed = workspace.take<T>(sizes.transposed_size(chunk));
    d_u_transposed = workspace.take<T>(chunk * columns);
    d_x = workspace.take<T>(chunk * sizes.dim_pitch);
    d_u = workspace.take<T>(chunk * sizes.u_pitch);
  }

  void add_keys(State<T> state) {
    if (decays) keys.fade_values(decay.until_end);
    accumulate(sizes.features, state, keys.dense(), key_masks(), fade(0), panel, prefetcher);
  }
  void add_queries(State<T> state, int64_t group) {
    if (decays) decay.fade_rows(queries.w, sizes.u_pitch, sizes.shape.columns, decay.since_start, queries.count);
    queries.pack_grads();
    const Keys<T> rows{queries.x, sizes.x_pitch, queries.w, sizes.u_pitch, queries.packed_grads(), queries.count};
    accumulate(sizes.features, state, rows, query_masks(), fade(group), panel, prefetcher);
  }
  FeatureMasks<T> key_masks() const { return keys.dropout.masks(*call, words); }
  FeatureMasks<T> query_masks() const { return queries.dropout.masks(*call, words); }
  const DecayChunk<T>* fading() const { return decays ? &decay : nullptr; }
  // The factor on a state over the chunk, once for all query heads that are added to it.
  T fade(int64_t group) const { return decays && group == 0 ? decay.whole : 1; }
  // A state over a chunk where nothing is added to it.
  void fade_alone(State<T> state) const {
    if (!decays) return;
    for (T* part : {state.sum, state.lost})
      if (part) multiply_row(part, decay.whole, (int)sizes.features.size);
  }
  // Before anything else of a chunk.
  void start(const Head& h, int64_t begin, int64_t end) {
    call = h.call;
    words.make(*call, sizes.features);
    decays = DecayChunk<T>::used(*h.call);
    if (decays) decay.load_chunk(h, begin, min(end, h.keys));
  }

  // Prefetches the chunk that the next call is for, the `step`-th from here.
  void prefetch_next(const Head& h, int64_t begin, int64_t step, bool of_keys, bool of_queries) {
    const FmCall& c = *h.call;
    const int64_t next = begin + step * sizes.chunk, queries_left = h.queries - next, keys_left = h.keys - next;
    const int64_t left = of_keys && of_queries ? min(keys_left, queries_left) : of_keys ? keys_left : queries_left;
    prefetcher.start(next < 0 ? 0 : min(sizes.chunk, left));
    if (prefetcher.rows == 0) return;
    auto add = [&](const FmTensor& t, int64_t head, int64_t token, int64_t channels) {
      const int64_t size = size_of(t.type);
      if (t.data)
        prefetcher.add((const char*)t.data + at(t, h.batch, head, token) * size, t.token_stride * size, channels * size);
    };
    if (of_keys) add(c.k, h.key_head, h.key_start + next, c.head_dim), add(c.v, h.key_head, h.key_start + next, c.value_dim);
    if (!of_queries) return;
    add(c.q, h.key_head * h.groups, h.query_start + next, c.head_dim);
    add(c.o, h.key_head * h.groups, h.query_start + next, c.value_dim);
    add(c.d_o, h.key_head * h.groups, h.query_start + next, c.value_dim);
  }

  // state += the keys begin:end, of one chunk, or, for the keys' gradients, the queries.
  void add(const Head& h, int64_t begin, int64_t end, State<T> state) {
    prefetch_next(h, begin, 1, pass != Pass::key_grads, pass == Pass::key_grads);
    start(h, begin, end);
    if (pass == Pass::key_grads) {
      for (int64_t g = 0; g < h.groups && begin < h.queries; g++) {
        queries.load_tokens(h, g, begin, min(end, h.queries), true, sizes.wraps);
        add_queries(state, g);
      }
      if (begin >= h.queries) fade_alone(state);
    } else if (begin < h.keys) {
      keys.load_tokens(h, begin, min(end, h.keys), sizes.wraps);
      keys.pack_values();
      add_keys(state);
    }
  }

  // The tokens of one chunk with a state that all of them see.
  void use(const Head& h, int64_t begin, int64_t end, const T* state) {
    prefetch_next(h, begin, 1, pass == Pass::key_grads, pass != Pass::key_grads);
    start(h, begin, end);
    if (pass == Pass::key_grads) {
      keys.load_tokens(h, begin, end, false);
      read_key_grads(state);
      keys.store_grads(h, d_x, sizes.dim_pitch, d_u, sizes.u_pitch);
      return;
    }
    for (int64_t g = 0; g < h.groups; g++) {
      queries.load_tokens(h, g, begin, end, pass == Pass::query_grads, false);
      read_queries(state);
      store_queries(h, g);
    }
  }

  // The tokens of one chunk when causal, walking the state along. `empty`: it is known to be zero; `keep`: it is needed after.
  void walk(const Head& h, int64_t begin, int64_t end, State<T> state, bool empty, bool keep) {
    start(h, begin, end);
    if (pass == Pass::key_grads) return walk_back(h, begin, end, state, empty, keep);
    prefetch_next(h, begin, 1, true, true);
    keys.load_tokens(h, begin, min(end, h.keys), sizes.wraps);
    keys.pack_values();
    for (int64_t g = 0; g < h.groups && begin < h.queries; g++) {
      queries.load_tokens(h, g, begin, min(end, h.queries), pass == Pass::query_grads, false);
      if (sizes.drops && keys.count > 0) {
        pair_queries(empty ? nullptr : state.sum);
      } else {
        read_queries(empty ? nullptr : state.sum);
        for (int s = 0; s < queries.subs && keys.count > 0; s++) dense_queries(s);
      }
      store_queries(h, g);
    }
    if (keys.count > 0 && keep) add_keys(state);
  }
  void walk_back(const Head& h, int64_t begin, int64_t end, State<T> state, bool empty, bool keep) {
    prefetch_next(h, begin, -1, true, true);
    keys.load_tokens(h, begin, min(end, h.keys), false);
    const T* seen = empty ? nullptr : state.sum;
    const bool by_pairs = sizes.drops && keys.count > 0 && begin < h.queries;
    if (by_pairs)
      start_key_grads();
    else
      read_key_grads(seen);
    for (int64_t g = 0; g < h.groups && begin < h.queries; g++) {
      queries.load_tokens(h, g, begin, min(end, h.queries), true, sizes.wraps);
      if (by_pairs)
        pair_keys(g == 0 ? seen : nullptr);
      else
        dense_key_grads();
      if (keep) add_queries(state, g);
    }
    if (by_pairs) store_key_grads();
    if (begin >= h.queries && keep) fade_alone(state);
    keys.store_grads(h, d_x, sizes.dim_pitch, d_u, sizes.u_pitch);
  }

  void read_queries(const T* state) {
    const Others<T>* none = nullptr;
    if (pass == Pass::outputs) {
      if (state)
        read(sizes.features, state, queries.x_transposed, query_masks(), queries.subs, queries.out, sizes.shape.columns, none,
             panel, prefetcher);
      else
        memset(queries.out, 0, (int64_t)queries.subs * sizes.shape.columns * W * sizeof(T));
      if (decays && state) decay.fade_queries(queries.out, sizes.shape.columns, queries.subs);
    } else {
      memset(queries.d_x, 0, (int64_t)queries.subs * sizes.shape.dim * W * sizeof(T));
      if (state)
        read_vjp(sizes.features, state, queries.x_transposed, query_masks(), queries.w_transposed, queries.subs, queries.d_x,
                 none, prefetcher);
      if (decays && state) decay.fade_queries(queries.d_x, sizes.shape.dim, queries.subs);
    }
  }
  void dense_queries(int s) {
    const Keys<T> dense = keys.dense();
    const T* x = queries.x_transposed_of(s);
    const int64_t diagonal = s * W;
    const T* fading = fade_pairs(s, dense.count);
    if (pass == Pass::outputs) {
      weigh<T>(sizes.shape, dense, x, diagonal, fading, weights_, nullptr);
      weighted_sum(sizes.shape, dense, weights_, diagonal, queries.out_of(s));
    } else {
      weigh<T>(sizes.shape, dense, x, diagonal, fading, nullptr, weights_);
      argument_grads(sizes.shape, dense, queries.w_transposed_of(s), diagonal, weights_);
      add_products(dense.x, dense.x_pitch, sizes.shape.dim, (const T*)weights_, visible_to_first_half<T>(dense.count, diagonal),
                   visible<T>(dense.count, diagonal), queries.d_x_of(s));
    }
  }
  // For the queries of a sub-chunk and the keys that they see; null without decay.
  const T* fade_pairs(int s, int keys) { return decays ? decay.fade_pairs(s * W, 0, visible<T>(keys, s * W)) : nullptr; }
  void store_queries(const Head& h, int64_t group) {
    if (pass == Pass::outputs)
      queries.store_outputs(h);
    else
      d_scale[group] += queries.store_grads(h);
  }

  // The same, with the keys of the chunk, where features are dropped.
  void pair_queries(const T* state) {
    const int columns = sizes.shape.columns, subs = queries.subs;
    const Others<T> others = pairs.others(keys.x, sizes.x_pitch, keys.count, key_masks(), false);
    if (pass == Pass::outputs) {
      if (!state) memset(queries.out, 0, (int64_t)subs * columns * W * sizeof(T));
      read(sizes.features, state, queries.x_transposed, query_masks(), subs, queries.out, columns, &others, panel, prefetcher);
      if (decays && state) decay.fade_queries(queries.out, columns, subs);
      pairs.hide(others, subs, fading());
      pairs.add_sums(others, sizes.shape, keys.u, sizes.u_pitch, keys.packed_values(), subs, queries.out, keys.are_finite);
    } else {
      memset(queries.d_x, 0, (int64_t)subs * sizes.shape.dim * W * sizeof(T));
      pairs.make_grads(others, keys.u, sizes.u_pitch, queries.w_transposed, columns, subs, fading());
      if (decays && state) decay.fade_queries(queries.w_transposed, columns, subs);
      read_vjp(sizes.features, state, queries.x_transposed, query_masks(), queries.w_transposed, subs, queries.d_x, &others,
               prefetcher);
    }
  }

  // d_x, d_u = the gradients of the keys' chunk from the state, in rows.
  void read_key_grads(const T* state) {
    const Others<T>* none = nullptr;
    if (!state) {
      memset(d_x, 0, keys.count * sizes.dim_pitch * sizeof(T));
      memset(d_u, 0, keys.count * sizes.u_pitch * sizeof(T));
      return;
    }
    start_key_grads();
    const int subs = key_subs();
    read(sizes.features, state, x_transposed, key_masks(), subs, d_u_transposed, value_channels(), none, panel, prefetcher);
    read_vjp(sizes.features, state, x_transposed, key_masks(), u_transposed, subs, d_x_transposed, none, prefetcher);
    store_key_grads();
    if (!decays) return;
    decay.fade_rows(d_x, sizes.dim_pitch, sizes.shape.dim, decay.until_end, keys.count);
    decay.fade_rows(d_u, sizes.u_pitch, sizes.shape.columns, decay.until_end, keys.count);
  }
  int key_subs() const { return (keys.count + W - 1) / W; }
  // Keys and values in columns, and no gradients yet.
  void start_key_grads() {
    const int dim = sizes.shape.dim, columns = sizes.shape.columns, subs = key_subs();
    for (int n = keys.count; n < subs * W; n++) {
      memset(keys.x + n * sizes.x_pitch, 0, sizes.x_pitch * sizeof(T));
      memset(keys.u + n * sizes.u_pitch, 0, sizes.u_pitch * sizeof(T));
    }
    for (int64_t s = 0; s < subs; s++) {
      transpose_to_channel_major(keys.x + s * W * sizes.x_pitch, sizes.x_pitch, sizes.raw_dim, x_transposed + s * dim * W);
      transpose_to_channel_major(keys.u + s * W * sizes.u_pitch, sizes.u_pitch, columns, u_transposed + s * columns * W);
    }
    memset(d_x_transposed, 0, (int64_t)subs * dim * W * sizeof(T));
    if (!sizes.drops) return;
    memset(d_u_transposed, 0, (int64_t)subs * columns * W * sizeof(T));
    memcpy(u_faded, u_transposed, (int64_t)subs * columns * W * sizeof(T));
    if (decays) decay.fade_lanes(u_faded, columns, subs, decay.until_end);
  }
  void store_key_grads() {
    const int dim = sizes.shape.dim, columns = sizes.shape.columns;
    for (int64_t s = 0; s < key_subs(); s++) {
      transpose_to_token_major(d_x_transposed + s * dim * W, sizes.raw_dim, d_x + s * W * sizes.dim_pitch, sizes.dim_pitch);
      transpose_to_token_major(d_u_transposed + s * columns * W, value_channels(), d_u + s * W * sizes.u_pitch, sizes.u_pitch);
    }
  }
  // Adds the gradients of the keys' chunk from the queries of the chunk, and from the state unless it is null, in columns.
  void pair_keys(const T* state) {
    const int columns = sizes.shape.columns, subs = key_subs();
    const Others<T> others = pairs.others(queries.x, sizes.x_pitch, queries.count, query_masks(), true);
    read(sizes.features, state, x_transposed, key_masks(), subs, d_u_transposed, columns, &others, panel, prefetcher);
    if (decays && state) decay.fade_lanes(d_u_transposed, columns, subs, decay.until_end);
    pairs.hide(others, subs, fading());
    queries.pack_grads();
    pairs.add_sums(others, sizes.shape, queries.w, sizes.u_pitch, queries.packed_grads(), subs, d_u_transposed);
    pairs.make_grads(others, queries.w, sizes.u_pitch, u_transposed, columns, subs, fading());
    read_vjp(sizes.features, state, x_transposed, key_masks(), u_faded, subs, d_x_transposed, &others, prefetcher);
  }
  // The requested gradients: the denominator's only for that of the decay.
  int value_channels() const { return decays ? sizes.shape.columns : sizes.value_dim; }
  void dense_key_grads() {
    const Keys<T> dense = keys.dense();
    if (dense.count == 0) return;
    const int64_t stride = (int64_t)sizes.chunk * W;
    for (int s = 0; s < queries.subs; s++) {
      const T* fading = fade_pairs(s, dense.count);
      weigh(sizes.shape, dense, queries.x_transposed_of(s), s * W, fading, weights_ + s * stride, slopes + s * stride);
      argument_grads(sizes.shape, dense, queries.w_transposed_of(s), s * W, slopes + s * stride);
    }
    key_grads(dense.count, 0, slopes, stride, queries.subs, queries.x, sizes.x_pitch, sizes.shape.dim, d_x, sizes.dim_pitch);
    key_grads(dense.count, 0, weights_, stride, queries.subs, queries.w, sizes.u_pitch, value_channels(), d_u, sizes.u_pitch);
  }
};

}  // namespace FM_LEVEL
