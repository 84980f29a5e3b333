// The factorized form of one head: what is summed into a state, and what is done with it, chunk by chunk.
//
// A state is summed in order for the outputs and the queries' gradients, in reverse for the keys'. When causal, a chunk's
// own keys are seen in the dense form, and are added to the state behind it.
#pragma once
#include "chunks.h"

namespace FM_LEVEL {

enum class Pass { outputs, query_grads, key_grads };

template <class T>
struct Factorized {
  static constexpr int W = WIDE<T>;
  const Sizes<T>& sizes;
  Pass pass;
  KeyChunk<T> keys;
  QueryChunk<T> queries;
  T *panel, *weights_, *slopes;
  T *u_columns, *x_columns, *d_x_columns, *d_u_columns, *d_x, *d_u;  // of keys, only for their gradients
  double* d_scale = nullptr;                                          // [groups], added to

  Factorized(const Sizes<T>& s, Pass pass) : sizes(s), pass(pass) {}
  void take(Arena& arena) {
    const int64_t chunk = sizes.chunk, dim = sizes.shape.dim, columns = sizes.shape.columns;
    keys.take(arena, sizes, chunk);
    queries.take(arena, sizes, chunk, pass != Pass::outputs);
    panel = arena.take<T>(most(chunk, sizes.features.group * W) * W);
    weights_ = arena.take<T>(chunk * (pass == Pass::key_grads ? chunk : W));
    if (pass != Pass::key_grads) return;
    slopes = arena.take<T>(chunk * chunk);
    u_columns = arena.take<T>(chunk * columns);
    x_columns = arena.take<T>(chunk * dim);
    d_x_columns = arena.take<T>(chunk * dim);
    d_u_columns = arena.take<T>(chunk * columns);
    d_x = arena.take<T>(chunk * sizes.dim_pitch);
    d_u = arena.take<T>(chunk * sizes.u_pitch);
  }

  void add_keys(T* state) {
    accumulate(sizes.features, state, keys.x, sizes.x_pitch, keys.u, sizes.u_pitch, keys.packed_values(), keys.count,
               panel);
  }
  void add_queries(T* state) {
    queries.pack_grads();
    accumulate(sizes.features, state, queries.x, sizes.x_pitch, queries.w, sizes.u_pitch, queries.packed_grads(),
               queries.count, panel);
  }

  // state += the keys begin:end, or, for the keys' gradients, the queries.
  void add(const Head& h, int64_t begin, int64_t end, T* state) {
    for (int64_t a = begin; a < end; a += sizes.chunk) {
      const int64_t b = least(end, a + sizes.chunk);
      if (pass == Pass::key_grads) {
        for (int64_t g = 0; g < h.groups && a < h.queries; g++) {
          queries.load_tokens(h, g, a, least(b, h.queries), true, sizes.wraps);
          add_queries(state);
        }
      } else if (a < h.keys) {
        keys.load_tokens(h, a, least(b, h.keys), sizes.wraps);
        keys.pack_values();
        add_keys(state);
      }
    }
  }

  // The tokens begin:end with a state that all of them see.
  void use(const Head& h, int64_t begin, int64_t end, const T* state) {
    for (int64_t a = begin; a < end; a += sizes.chunk) {
      const int64_t b = least(end, a + sizes.chunk);
      if (pass == Pass::key_grads) {
        keys.load_tokens(h, a, b, false);
        read_key_grads(state);
        keys.store_grads(h, d_x, sizes.dim_pitch, d_u, sizes.u_pitch);
      } else {
        for (int64_t g = 0; g < h.groups; g++) {
          queries.load_tokens(h, g, a, b, pass == Pass::query_grads, false);
          read_queries(state);
          store_queries(h, g);
        }
      }
    }
  }

  // The tokens begin:end when causal, walking the state along. `empty`: it is known to be zero; `keep`: it is needed after.
  void walk(const Head& h, int64_t begin, int64_t end, T* state, bool empty, bool keep) {
    for (int64_t a = begin; a < end; a += sizes.chunk) {
      const int64_t b = least(end, a + sizes.chunk);
      keys.load_tokens(h, a, least(b, h.keys), sizes.wraps);
      keys.pack_values();
      for (int64_t g = 0; g < h.groups && a < h.queries; g++) {
        queries.load_tokens(h, g, a, least(b, h.queries), pass == Pass::query_grads, false);
        read_queries(empty ? nullptr : state);
        for (int s = 0; s < queries.subs && keys.count > 0; s++) dense_queries(s);
        store_queries(h, g);
      }
      if (keys.count == 0 || (b >= end && !keep)) continue;
      add_keys(state);
      empty = false;
    }
  }
  void walk_back(const Head& h, int64_t begin, int64_t end, T* state, bool empty, bool keep) {
    for (int64_t a = begin + (most(end - begin, 1) - 1) / sizes.chunk * sizes.chunk; a >= begin; a -= sizes.chunk) {
      const int64_t b = least(end, a + sizes.chunk);
      keys.load_tokens(h, a, least(b, h.keys), false);
      read_key_grads(empty ? nullptr : state);
      for (int64_t g = 0; g < h.groups && a < least(b, h.queries); g++) {
        queries.load_tokens(h, g, a, least(b, h.queries), true, sizes.wraps);
        dense_key_grads();
        if (a == begin && !keep) continue;
        add_queries(state);
        empty = false;
      }
      keys.store_grads(h, d_x, sizes.dim_pitch, d_u, sizes.u_pitch);
    }
  }

  void read_queries(const T* state) {
    if (pass == Pass::outputs) {
      if (state)
        read(sizes.features, state, queries.columns, queries.subs, queries.out, sizes.shape.columns, panel);
      else
        memset(queries.out, 0, (int64_t)queries.subs * sizes.shape.columns * W * sizeof(T));
    } else {
      memset(queries.d_x, 0, (int64_t)queries.subs * sizes.shape.dim * W * sizeof(T));
      if (state) read_vjp(sizes.features, state, queries.columns, queries.w_columns, queries.subs, queries.d_x);
    }
  }
  void dense_queries(int s) {
    const Keys<T> dense = keys.dense();
    const T* x = queries.columns_of(s);
    const int64_t ahead = s * W;
    if (pass == Pass::outputs) {
      weights(sizes.shape, dense, x, ahead, weights_);
      weighted_sum(sizes.shape, dense, weights_, ahead, queries.out_of(s));
    } else {
      argument_grads(sizes.shape, dense, x, queries.w_columns_of(s), ahead, weights_);
      query_grads(sizes.shape, dense, weights_, ahead, queries.d_x_of(s));
    }
  }
  void store_queries(const Head& h, int64_t group) {
    if (pass == Pass::outputs)
      queries.store_outputs(h);
    else
      d_scale[group] += queries.store_grads(h);
  }

  // d_x, d_u = the gradients of the keys' chunk from the state, in rows.
  void read_key_grads(const T* state) {
    const int dim = sizes.shape.dim, columns = sizes.shape.columns, subs = (keys.count + W - 1) / W;
    if (!state) {
      memset(d_x, 0, keys.count * sizes.dim_pitch * sizeof(T));
      memset(d_u, 0, keys.count * sizes.u_pitch * sizeof(T));
      return;
    }
    for (int n = keys.count; n < subs * W; n++) {
      memset(keys.x + n * sizes.x_pitch, 0, sizes.x_pitch * sizeof(T));
      memset(keys.u + n * sizes.u_pitch, 0, sizes.u_pitch * sizeof(T));
    }
    for (int64_t s = 0; s < subs; s++) {
      to_columns(keys.x + s * W * sizes.x_pitch, sizes.x_pitch, dim, x_columns + s * dim * W);
      to_columns(keys.u + s * W * sizes.u_pitch, sizes.u_pitch, columns, u_columns + s * columns * W);
    }
    memset(d_x_columns, 0, (int64_t)subs * dim * W * sizeof(T));
    read(sizes.features, state, x_columns, subs, d_u_columns, sizes.value_dim, panel);
    read_vjp(sizes.features, state, x_columns, u_columns, subs, d_x_columns);
    for (int64_t s = 0; s < subs; s++) {
      to_rows(d_x_columns + s * dim * W, dim, d_x + s * W * sizes.dim_pitch, sizes.dim_pitch);
      to_rows(d_u_columns + s * columns * W, sizes.value_dim, d_u + s * W * sizes.u_pitch, sizes.u_pitch);
    }
  }
  void dense_key_grads() {
    const Keys<T> dense = keys.dense();
    if (dense.count == 0) return;
    const int64_t stride = (int64_t)sizes.chunk * W;
    for (int s = 0; s < queries.subs; s++) {
      weights(sizes.shape, dense, queries.columns_of(s), s * W, weights_ + s * stride);
      argument_grads(sizes.shape, dense, queries.columns_of(s), queries.w_columns_of(s), s * W, slopes + s * stride);
    }
    key_grads(dense.count, 0, slopes, stride, queries.subs, queries.x, sizes.x_pitch, sizes.shape.dim, d_x, sizes.dim_pitch);
    key_grads(dense.count, 0, weights_, stride, queries.subs, queries.w, sizes.u_pitch, sizes.value_dim, d_u, sizes.u_pitch);
  }
};

}  // namespace FM_LEVEL
