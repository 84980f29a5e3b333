// The factorized form of one head: sums into a state, and reads of it, chunk by chunk.
//
// A state is summed in order for the outputs and the queries' gradients, in reverse for the keys'. When causal, a chunk's
// own keys are seen in the dense form, and are added to the state behind it. Where features are dropped the dense form has no
// shortcut past them: the pairs of a chunk are summed over features too.
// Sums that neither come in nor go out are about a centre, which is subtracted from keys where they are added or read the sum.
// A decay that fades both ways takes two walks: the first against the order, with a state of what comes behind each chunk.
#pragma once
#include "forms/decay.h"
#include "forms/keys.h"
#include "forms/pairs.h"
#include "forms/queries.h"

#include <initializer_list>

namespace FM_LEVEL {

enum class Pass { outputs, query_grads, key_grads };
enum class Walk { only, first, second };  // `first` keeps what it reads from the state, and `second` adds that

template <class T>
struct FactorizedForm {
  static constexpr int W = WIDE<T>;
  const Sizes<T>& sizes;
  const Pass pass;
  const Walk walk_kind;
  const bool reverse;  // the walk is from the last chunk to the first
  KeyChunk<T> keys;
  QueryChunk<T> queries;
  DecayChunk<T> decay;
  bool decays = false, both_ways = false;
  FeatureWords<T> words;
  PairChunk<T> pairs;  // only where features are dropped
  T *panel, *weights_, *slopes;
  T *u_transposed, *u_faded, *x_transposed, *d_x_transposed, *d_u_transposed, *d_x, *d_u;  // of keys, only for their gradients
  T *shares, *d_sums;  // [chunk][W] and [chunk], of the gradients of sums of decays
  Prefetcher prefetcher;
  const FmCall* call = nullptr;
  double* d_scale = nullptr;  // [groups], added to
  T* kept = nullptr;          // [groups or 1][kept_size()]: what the first of two walks reads from the state for a chunk

  FactorizedForm(const Sizes<T>& s, Pass pass, Walk kind)
      : sizes(s), pass(pass), walk_kind(kind), reverse((pass == Pass::key_grads) != (kind == Walk::first)) {}
  static int64_t kept_size(const Sizes<T>& s, Pass pass) {
    const int64_t channels = pass == Pass::outputs       ? s.shape.columns
                             : pass == Pass::query_grads ? s.shape.dim
                                                         : s.dim_pitch + s.u_pitch;
    return s.chunk * channels;
  }
  void take(Workspace& workspace) {
    const int64_t chunk = sizes.chunk, dim = sizes.shape.dim, columns = sizes.shape.columns;
    keys.take(workspace, sizes, chunk);
    queries.take(workspace, sizes, chunk, pass != Pass::outputs);
    decay.take(workspace, chunk, chunk);
    panel = workspace.take<T>(max(chunk, max(Features<T>::GROUP * W, dim)) * W);
    words.take(workspace, sizes.features);
    if (sizes.drops) pairs.take(workspace, sizes);
    weights_ = workspace.take<T>(chunk * (pass == Pass::key_grads ? chunk : W));
    shares = workspace.take<T>(chunk * W), d_sums = workspace.take<T>(chunk);
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

  // The factors of the decay on tokens that are added to a state, and on a state that tokens read.
  const T* adding() const { return reverse ? decay.since_start : decay.until_end; }
  const T* reading() const { return reverse ? decay.until_end : decay.since_start; }
  // The tokens whose factor is not 0. Where features are dropped these are all tokens, because features are drawn by place.
  Range living(const T* factors, int tokens) const {
    Range range{0, tokens};
    if (!decays || sizes.drops) return range;
    while (range.begin < range.end && factors[range.begin] == 0) range.begin++;
    while (range.begin < range.end && factors[range.end - 1] == 0) range.end--;
    return range;
  }
  // The same, in sub-chunks.
  Range living_subs(int tokens) const {
    const Range range = living(reading(), tokens);
    return {range.begin / W, (range.end + W - 1) / W};
  }

  void add_keys(State<T> state) {
    const Range used = living(adding(), keys.count);
    if (decays) keys.fade_values(adding(), used);
    if (state.centre) keys.subtract(state.centre);
    accumulate(sizes.features, state, keys.dense(used), key_masks(), {}, fade(0), panel, prefetcher);
  }
  void add_queries(State<T> state, int64_t group) {
    const Range used = living(adding(), queries.count);
    T* w = queries.w + used.begin * sizes.u_pitch;
    const int count = (int)(used.end - used.begin);
    if (decays) decay.fade_rows(w, sizes.u_pitch, sizes.shape.columns, adding() + used.begin, count);
    queries.pack_grads(used);
    const T* x = queries.x + used.begin * sizes.x_pitch;
    const Keys<T> rows{x, sizes.x_pitch, w, sizes.u_pitch, queries.packed_grads(), count};
    accumulate(sizes.features, state, rows, query_masks(), queries.about(used.begin), fade(group), panel, prefetcher);
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
  // Called before everything else of a chunk.
  void start(const Head& h, int64_t begin, int64_t end, State<T> state) {
    call = h.call;
    queries.centre = state.centre;
    words.make(*call, sizes.features);
    decays = DecayChunk<T>::used(*h.call), both_ways = walk_kind != Walk::only;
    if (decays) decay.load_chunk(h, begin, min(end, h.keys));
  }

  // Prefetches the chunk of the next call, the `step`-th from here.
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
    start(h, begin, end, state);
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
  void use(const Head& h, int64_t begin, int64_t end, State<T> state) {
    prefetch_next(h, begin, 1, pass == Pass::key_grads, pass != Pass::key_grads);
    start(h, begin, end, state);
    if (pass == Pass::key_grads) {
      keys.load_tokens(h, begin, end, false);
      read_key_grads(state.sum);
      keys.store_grads(h, d_x, sizes.dim_pitch, d_u, sizes.u_pitch, d_sums);
      return;
    }
    for (int64_t g = 0; g < h.groups; g++) {
      queries.load_tokens(h, g, begin, end, pass == Pass::query_grads, false);
      read_queries(state.sum);
      store_queries(h, g);
    }
  }

  // The tokens of one chunk when causal or with a decay, walking the state along. `empty`: the state is known to be zero;
  // `keep`: the state is needed afterwards.
  void walk(const Head& h, int64_t begin, int64_t end, State<T> state, bool empty, bool keep) {
    start(h, begin, end, state);
    if (walk_kind == Walk::first) return walk_against(h, begin, end, state, empty, keep);
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
        if (decays && pass == Pass::query_grads) add_sums(h, d_sums, 1, both_ways || g > 0);
        if (both_ways) add_kept_queries(g);
        for (int s = 0; s < queries.subs && keys.count > 0; s++) dense_queries(s);
      }
      store_queries(h, g);
    }
    if (keys.count > 0 && keep) add_keys(state);
  }
  // The first of two walks: keeps what the chunk reads from the state.
  void walk_against(const Head& h, int64_t begin, int64_t end, State<T> state, bool empty, bool keep) {
    const bool of_keys = pass == Pass::key_grads;
    prefetch_next(h, begin, reverse ? -1 : 1, true, true);
    keys.load_tokens(h, begin, min(end, h.keys), sizes.wraps && !of_keys);
    if (of_keys) {
      read_key_grads(empty ? nullptr : state.sum);
      keep_keys(h);
    }
    for (int64_t g = 0; g < h.groups && begin < h.queries; g++) {
      queries.load_tokens(h, g, begin, min(end, h.queries), pass != Pass::outputs, sizes.wraps && of_keys);
      if (of_keys) {
        if (keep) add_queries(state, g);
        continue;
      }
      read_queries(empty ? nullptr : state.sum);
      keep_queries(h, g);
    }
    if (!of_keys && keys.count > 0 && keep) add_keys(state);
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
    if (decays && !by_pairs) {
      make_key_shares(-1);
      for (int n = 0; n < keys.count && h.queries > 0; n++) d_sums[n] += *sum_at(h, n);
    }
    if (both_ways) add_kept_keys();
    for (int64_t g = 0; g < h.groups && begin < h.queries; g++) {
      queries.load_tokens(h, g, begin, min(end, h.queries), true, sizes.wraps);
      if (by_pairs)
        pair_keys(g == 0 ? seen : nullptr);
      else
        dense_key_grads();
      if (keep) add_queries(state, g);
    }
    if (by_pairs) store_key_grads({0, key_subs()});
    if (decays && by_pairs) {
      make_key_shares(-1);
      for (int n = 0; n < keys.count; n++) d_sums[n] += rows_part(h, keys.first + n);
    }
    if (begin >= h.queries && keep) fade_alone(state);
    keys.store_grads(h, d_x, sizes.dim_pitch, d_u, sizes.u_pitch, d_sums);
  }

  void read_queries(const T* state) {
    const Others<T>* none = nullptr;
    const int dim = sizes.shape.dim, columns = sizes.shape.columns;
    const Range subs = state ? living_subs(queries.count) : Range{0, 0};
    const int s = (int)subs.begin, count = (int)(subs.end - subs.begin);
    if (pass == Pass::outputs) {
      if (count < queries.subs) memset(queries.out, 0, (int64_t)queries.subs * columns * W * sizeof(T));
      if (count == 0) return;
      read(sizes.features, state, queries.x_transposed_of(s), query_masks(), queries.about(s * W), count, queries.out_of(s),
           columns, none, panel, prefetcher);
      if (decays) decay.fade_lanes(queries.out, columns, queries.subs, reading());
    } else {
      memset(queries.d_x, 0, (int64_t)queries.subs * dim * W * sizeof(T));
      if (decays) memset(d_sums, 0, queries.count * sizeof(T));
      if (count == 0) return;
      read_vjp(sizes.features, state, queries.x_transposed_of(s), query_masks(), queries.about(s * W),
               queries.w_transposed_of(s), count, queries.d_x_of(s), none, prefetcher);
      if (decays) make_query_shares(state, s, count);
      if (decays) decay.fade_lanes(queries.d_x, dim, queries.subs, reading());
    }
  }
  // d_sums = phi(x) . (state w) for the queries of `count` sub-chunks from s on, with the factor of the decay. d_x has
  // J^T (state w), so x . d_x counts a feature as often as its degree. Together with a read of the lower degrees all features
  // count once; about a centre, if that read is about zero and the constant is taken f'(b) times.
  void make_query_shares(const T* state, int s, int count) {
    const Others<T>* none = nullptr;
    const int dim = sizes.shape.dim, columns = sizes.shape.columns;
    Features<T> low = sizes.features;
    low.blocks = low.linear;
    read(low, state, queries.x_transposed_of(s), query_masks(), {}, count, queries.out_of(s), columns, none, panel, prefetcher);
    for (int sub = s; sub < s + count; sub++) {
      const T *w = queries.w_transposed_of(sub), *x = queries.x_transposed_of(sub), *f = queries.out_of(sub),
              *d = queries.d_x_of(sub);
      T lower[W] = {}, constant[W] = {}, by_degree[W] = {};
      for (int j = 0; j < columns; j++)
        for (int i = 0; i < W; i++) lower[i] += w[j * W + i] * f[j * W + i], constant[i] += w[j * W + i] * state[j];
      for (int i = 0; queries.centre && i < W; i++) constant[i] *= queries.slope[sub * W + i];
      for (int m = 0; m < dim; m++)
        for (int i = 0; i < W; i++) by_degree[i] += x[m * W + i] * d[m * W + i];
      for (int i = 0; i < W && sub * W + i < queries.count; i++)
        d_sums[sub * W + i] =
            reading()[sub * W + i] * (sizes.features.order == 2 ? (lower[i] + constant[i] + by_degree[i]) / 2 : lower[i]);
    }
  }

  // The part that the first walk has read for a chunk, which the second adds.
  T* kept_of(int64_t group) const { return kept + group * kept_size(sizes, pass); }
  void keep_queries(const Head& h, int64_t group) {
    const T* from = pass == Pass::outputs ? queries.out : queries.d_x;
    memcpy(kept_of(group), from, (int64_t)queries.subs * W * kept_size(sizes, pass) / sizes.chunk * sizeof(T));
    if (pass == Pass::query_grads) add_sums(h, d_sums, -1, group > 0);
  }
  void add_kept_queries(int64_t group) {
    T* to = pass == Pass::outputs ? queries.out : queries.d_x;
    add_all(to, kept_of(group), (int64_t)queries.subs * W * kept_size(sizes, pass) / sizes.chunk);
  }
  void keep_keys(const Head& h) {
    const int64_t size = keys.count * sizes.dim_pitch;
    memcpy(kept, d_x, size * sizeof(T));
    memcpy(kept + sizes.chunk * sizes.dim_pitch, d_u, keys.count * sizes.u_pitch * sizeof(T));
    make_key_shares(1);
    add_sums(h, d_sums, 1, h.queries > 0);  // behind those of the queries
  }
  void add_kept_keys() {
    add_all(d_x, kept, keys.count * sizes.dim_pitch);
    add_all(d_u, kept + sizes.chunk * sizes.dim_pitch, keys.count * sizes.u_pitch);
  }
  // d_sums = the products of the keys' u with its gradient from the state, which is in d_u.
  void make_key_shares(T sign) {
    for (int n = 0; n < keys.count; n++)
      d_sums[n] = sign * dot((const T*)d_u + n * sizes.u_pitch, (const T*)keys.u + n * sizes.u_pitch, sizes.shape.columns);
  }
  // The part of a query in the gradient of its sum, if causal. A factor on both parts of a quotient does not change it, so only
  // the gradient of the denominator is left.
  T rows_part(const Head& h, int64_t n) const {
    const FmCall& c = *h.call;
    T sum = 0;
    for (int64_t q = h.key_head * h.groups; c.d_g.data && n < h.queries && q < (h.key_head + 1) * h.groups; q++) {
      T d_g;
      load_row(c.d_g.data, c.d_g.type, at(c.d_g, h.batch, q, h.query_start + n), 1, &d_g);
      sum += d_g * ((const T*)c.g.data)[at(c.g, h.batch, q, h.query_start + n)];
    }
    return sum;
  }
  T* sum_at(const Head& h, int64_t n) const {
    const FmTensor& t = h.call->d_decay;
    return (T*)t.data + at(t, h.batch, h.key_head, h.key_start + keys.first + n);
  }
  // The gradients of sums in the tensor: += or =.
  void add_sums(const Head& h, const T* from, T sign, bool adds) {
    for (int n = 0; n < keys.count; n++) *sum_at(h, n) = (adds ? *sum_at(h, n) : 0) + sign * from[n];
  }
  static void add_all(T* to, const T* from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] += from[i];
  }

  // The position of the first query of a sub-chunk relative to the chunk's first key.
  int64_t diagonal_of(int64_t s) const { return both_ways ? UNMASKED : s * W; }
  void dense_queries(int s) {
    const Keys<T> dense = keys.dense();
    const T* x = queries.x_transposed_of(s);
    const int64_t diagonal = diagonal_of(s);
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
  // The factors for the queries of a sub-chunk and the keys that they see; null without decay.
  const T* fade_pairs(int s, int keys) {
    return decays ? decay.fade_pairs(s * W, 0, visible<T>(keys, diagonal_of(s)), !both_ways) : nullptr;
  }
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
      read(sizes.features, state, queries.x_transposed, query_masks(), {}, subs, queries.out, columns, &others, panel,
           prefetcher);
      if (decays && state) decay.fade_lanes(queries.out, columns, subs, reading());
      pairs.hide(others, subs, fading());
      pairs.add_sums(others, sizes.shape, keys.u, sizes.u_pitch, keys.packed_values(), subs, queries.out, keys.are_finite);
    } else {
      memset(queries.d_x, 0, (int64_t)subs * sizes.shape.dim * W * sizeof(T));
      pairs.make_grads(others, keys.u, sizes.u_pitch, queries.w_transposed, columns, subs, fading());
      if (decays && state) decay.fade_lanes(queries.w_transposed, columns, subs, reading());
      read_vjp(sizes.features, state, queries.x_transposed, query_masks(), {}, queries.w_transposed, subs, queries.d_x, &others,
               prefetcher);
    }
  }

  // d_x, d_u = the gradients of the keys' chunk from the state, in rows.
  void read_key_grads(const T* state) {
    const Others<T>* none = nullptr;
    const Range subs = state ? living_subs(keys.count) : Range{0, 0};
    const int64_t s = subs.begin, count = subs.end - s, dim = sizes.shape.dim, columns = sizes.shape.columns;
    if (count < key_subs()) {
      memset(d_x, 0, keys.count * sizes.dim_pitch * sizeof(T));
      memset(d_u, 0, keys.count * sizes.u_pitch * sizeof(T));
    }
    if (count == 0) return;
    start_key_grads();
    read(sizes.features, state, x_transposed + s * dim * W, key_masks(), {}, (int)count, d_u_transposed + s * columns * W,
         value_channels(), none, panel, prefetcher);
    read_vjp(sizes.features, state, x_transposed + s * dim * W, key_masks(), {}, u_transposed + s * columns * W, (int)count,
             d_x_transposed + s * dim * W, none, prefetcher);
    store_key_grads(subs);
    if (!decays) return;
    decay.fade_rows(d_x, sizes.dim_pitch, sizes.shape.dim, reading(), keys.count);
    decay.fade_rows(d_u, sizes.u_pitch, sizes.shape.columns, reading(), keys.count);
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
      for (int m = 0; queries.centre && m < dim; m++)
        for (T* at = x_transposed + (s * dim + m) * W; at < x_transposed + (s * dim + m + 1) * W; at += LANES<T>)
          store(at, load(at) - queries.centre[m]);
    }
    memset(d_x_transposed, 0, (int64_t)subs * dim * W * sizeof(T));
    if (!sizes.drops) return;
    memset(d_u_transposed, 0, (int64_t)subs * columns * W * sizeof(T));
    memcpy(u_faded, u_transposed, (int64_t)subs * columns * W * sizeof(T));
    if (decays) decay.fade_lanes(u_faded, columns, subs, reading());
  }
  void store_key_grads(Range subs) {
    const int dim = sizes.shape.dim, columns = sizes.shape.columns;
    for (int64_t s = subs.begin; s < subs.end; s++) {
      transpose_to_token_major(d_x_transposed + s * dim * W, sizes.raw_dim, d_x + s * W * sizes.dim_pitch, sizes.dim_pitch);
      transpose_to_token_major(d_u_transposed + s * columns * W, value_channels(), d_u + s * W * sizes.u_pitch, sizes.u_pitch);
    }
  }
  // Adds the gradients of the keys' chunk from the queries of the chunk, and from the state unless it is null, in columns.
  void pair_keys(const T* state) {
    const int columns = sizes.shape.columns, subs = key_subs();
    const Others<T> others = pairs.others(queries.x, sizes.x_pitch, queries.count, query_masks(), true);
    read(sizes.features, state, x_transposed, key_masks(), {}, subs, d_u_transposed, columns, &others, panel, prefetcher);
    if (decays && state) decay.fade_lanes(d_u_transposed, columns, subs, reading());
    pairs.hide(others, subs, fading());
    queries.pack_grads({0, queries.count});
    pairs.add_sums(others, sizes.shape, queries.w, sizes.u_pitch, queries.packed_grads(), subs, d_u_transposed);
    pairs.make_grads(others, queries.w, sizes.u_pitch, u_transposed, columns, subs, fading());
    read_vjp(sizes.features, state, x_transposed, key_masks(), {}, u_faded, subs, d_x_transposed, &others, prefetcher);
  }
  // The gradients that a state is read for. That of the denominator is needed only for the gradient of the decay.
  int value_channels() const { return decays ? sizes.shape.columns : sizes.value_dim; }
  void dense_key_grads() {
    const Keys<T> dense = keys.dense();
    if (dense.count == 0) return;
    const int64_t stride = (int64_t)sizes.chunk * W;
    for (int s = 0; s < queries.subs; s++) {
      const T* fading = fade_pairs(s, dense.count);
      T *of_weights = weights_ + s * stride, *of_slopes = slopes + s * stride;
      const int64_t diagonal = diagonal_of(s);
      weigh(sizes.shape, dense, queries.x_transposed_of(s), diagonal, fading, of_weights, of_slopes);
      argument_grads(sizes.shape, dense, queries.w_transposed_of(s), diagonal, of_slopes, decays ? of_weights : nullptr,
                     shares);
      if (decays) decay.add_sum_grads(shares, s * W, 0, dense.count, !both_ways, d_sums);
    }
    key_grads(dense.count, diagonal_of(0), slopes, stride, queries.subs, queries.x, sizes.x_pitch, sizes.shape.dim, d_x,
              sizes.dim_pitch);
    key_grads(dense.count, diagonal_of(0), weights_, stride, queries.subs, queries.w, sizes.u_pitch, sizes.value_dim, d_u,
              sizes.u_pitch);
  }
};

}  // namespace FM_LEVEL
