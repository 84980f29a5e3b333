// One head of one sequence, and chunks of its tokens: loaded and standardized into rows and columns, and stored back.
#pragma once
#include <stdlib.h>

#include "dense.h"
#include "features.h"
#include "rows.h"

namespace FM_LEVEL {

// A key head with the query heads that read it, in one sequence.
struct Head {
  const FmCall* call;
  int64_t batch, key_head, groups;
  int64_t query_start, queries, key_start, keys;
  int64_t state;  // index of its state
};

FM_INLINE int64_t at(const FmTensor& t, int64_t batch, int64_t head, int64_t token) {
  return batch * t.batch_stride + head * t.head_stride + token * t.token_stride;
}

// Memory for the chunks of one thread, taken in pieces of one allocation.
struct Arena {
  char *base = nullptr, *next = nullptr;
  bool measuring = true;
  size_t size = 0;
  template <class T>
  T* take(int64_t n) {
    const size_t bytes = (n * sizeof(T) + 63) / 64 * 64 + 64;  // 64 more: vector loads may run past the end
    if (measuring) {
      size += bytes;
      return nullptr;
    }
    T* p = (T*)next;
    next += bytes;
    return p;
  }
  bool allocate() {
    base = next = (char*)aligned_alloc(64, size + 64);
    measuring = false;
    return base != nullptr;
  }
  bool allocate_zeros() {
    if (allocate()) memset(base, 0, size + 64);
    return base != nullptr;
  }
  ~Arena() { free(base); }
};

template <class T>
struct Sizes {
  Features<T> features;
  Shape<T> shape;
  int value_dim, chunk;
  bool wraps;  // rows are continued cyclically: degree 2 shifts them
  bool packs;  // values are packed where each is used often enough to pay for it
  int64_t x_pitch, u_pitch, dim_pitch;
  Sizes(const FmCall& c, int order)
      : features((int)c.head_dim, (int)c.value_dim + 1, order),
        shape{(int)c.head_dim, (int)c.value_dim + 1, (int)c.order},
        value_dim((int)c.value_dim),
        chunk(choose_chunk(c)),
        wraps(order == 2),
        packs(order == 2),
        x_pitch(features.row_pitch()),
        u_pitch(features.head),
        dim_pitch(round_up(c.head_dim, WIDE<T>)) {}
  // A long chunk spares traffic with the state, a short one work in the dense form; a multiple of WIDE in any case.
  static int choose_chunk(const FmCall& c) { return (c.is_causal && c.head_dim <= 32) || c.order == 1 ? 64 : 128; }
};

// Queries or keys, standardized if the call says so, times `factor`.
template <class T>
void load_vectors(const FmCall& c, const FmTensor& from, int64_t offset, int count, const Sizes<T>& s, T factor, T* x,
                  T* rstd) {
  if (c.normalize)
    return load_standardized(from.data, from.type, offset, from.token_stride, count, s.shape.dim, x, s.x_pitch, (T)c.eps,
                             factor, rstd);
  load_rows(from.data, from.type, offset, from.token_stride, count, s.shape.dim, x, s.x_pitch);
  for (int n = 0; n < count && factor != 1; n++) multiply_row(x + n * s.x_pitch, factor, s.shape.dim);
}

// Keys and values of up to `capacity` tokens. A key that does not count is all zeros, so that it adds nothing anywhere.
template <class T>
struct KeyChunk {
  const Sizes<T>* sizes;
  T *x, *u, *packed, *rstd;
  int64_t first = 0;
  int count = 0;

  void take(Arena& arena, const Sizes<T>& s, int64_t capacity) {
    sizes = &s;
    x = arena.take<T>(capacity * s.x_pitch);
    u = arena.take<T>(capacity * s.u_pitch);
    packed = arena.take<T>(capacity * s.shape.columns);
    rstd = arena.take<T>(capacity);
  }
  bool counts(const Head& h, int64_t token) const {
    const FmCall& c = *h.call;
    return !c.mask || c.mask[h.batch * c.mask_batch_stride + h.key_head * c.mask_head_stride +
                             (h.key_start + token) * c.mask_token_stride];
  }
  void load_tokens(const Head& h, int64_t begin, int64_t end, bool wrap) {
    const FmCall& c = *h.call;
    const int dim = sizes->shape.dim, value_dim = sizes->value_dim;
    first = begin;
    count = (int)most(0, end - begin);
    const int64_t token = h.key_start + begin;
    load_vectors(c, c.k, at(c.k, h.batch, h.key_head, token), count, *sizes, (T)1, x, rstd);
    load_rows(c.v.data, c.v.type, at(c.v, h.batch, h.key_head, token), c.v.token_stride, count, value_dim, u, sizes->u_pitch);
    for (int n = 0; n < count; n++) u[n * sizes->u_pitch + value_dim] = 1;
    for (int n = 0; c.mask && n < count; n++) {
      if (counts(h, begin + n)) continue;
      memset(x + n * sizes->x_pitch, 0, sizes->x_pitch * sizeof(T));
      memset(u + n * sizes->u_pitch, 0, sizes->u_pitch * sizeof(T));
    }
    for (int n = 0; wrap && n < count; n++) wrap_row(x + n * sizes->x_pitch, dim, sizes->x_pitch);
  }
  void pack_values() {
    if (sizes->packs) pack(u, sizes->u_pitch, count, sizes->shape.columns, packed);
  }
  const T* packed_values() const { return sizes->packs ? packed : nullptr; }
  Keys<T> dense() const { return {x, sizes->x_pitch, u, sizes->u_pitch, packed_values(), count}; }

  // d_x holds the gradients of the standardized keys; both are overwritten.
  void store_grads(const Head& h, T* d_x, int64_t d_x_pitch, const T* d_v, int64_t d_v_pitch) const {
    const FmCall& c = *h.call;
    const int dim = sizes->shape.dim, value_dim = sizes->value_dim;
    if (c.normalize) standardize_rows_vjp(d_x, d_x_pitch, x, sizes->x_pitch, rstd, count, dim);
    for (int n = 0; n < count; n++) {
      T* dn = d_x + n * d_x_pitch;
      const T* vn = d_v + n * d_v_pitch;
      if (!counts(h, first + n)) {
        memset(dn, 0, dim * sizeof(T));
        vn = nullptr;
      }
      const int64_t token = h.key_start + first + n;
      store_row(dn, dim, c.d_k.data, c.d_k.type, at(c.d_k, h.batch, h.key_head, token));
      store_row(vn ? vn : zeros(), value_dim, c.d_v.data, c.d_v.type, at(c.d_v, h.batch, h.key_head, token));
    }
  }
  static const T* zeros() {
    static const T z[256] = {};
    return z;
  }
};

// Queries of one head, up to `capacity` tokens: x, [tokens][dim] times the scale, and the same in columns per sub-chunk.
template <class T>
struct QueryChunk {
  static constexpr int W = WIDE<T>;
  const Sizes<T>* sizes;
  T *x, *columns, *out, *rstd;                          // out: [sub][columns][W]
  T *hat, *w, *w_columns, *packed, *d_x, *d_rows;     // only for gradients
  int64_t first = 0, head = 0;
  int count = 0, subs = 0;
  T scale = 1;

  void take(Arena& arena, const Sizes<T>& s, int64_t capacity, bool grads) {
    sizes = &s;
    x = arena.take<T>(capacity * s.x_pitch);
    columns = arena.take<T>(capacity * s.shape.dim);
    out = arena.take<T>(capacity * s.shape.columns);
    rstd = arena.take<T>(capacity);
    d_rows = arena.take<T>(W * most(s.u_pitch, s.dim_pitch));
    if (!grads) return;
    hat = arena.take<T>(capacity * s.dim_pitch);
    w = arena.take<T>(capacity * s.u_pitch);
    w_columns = arena.take<T>(capacity * s.shape.columns);
    packed = arena.take<T>(capacity * s.shape.columns);
    d_x = arena.take<T>(capacity * s.shape.dim);
  }
  const T* columns_of(int sub) const { return columns + (int64_t)sub * sizes->shape.dim * W; }
  const T* w_columns_of(int sub) const { return w_columns + (int64_t)sub * sizes->shape.columns * W; }
  T* out_of(int sub) const { return out + (int64_t)sub * sizes->shape.columns * W; }
  T* d_x_of(int sub) const { return d_x + (int64_t)sub * sizes->shape.dim * W; }

  void load_tokens(const Head& h, int64_t group, int64_t begin, int64_t end, bool grads, bool wrap) {
    const FmCall& c = *h.call;
    const int dim = sizes->shape.dim;
    head = h.key_head * h.groups + group;
    scale = (T)(c.head_scale ? c.scale * c.head_scale[head] : c.scale);
    first = begin;
    count = (int)most(0, end - begin);
    subs = (count + W - 1) / W;
    load_vectors(c, c.q, at(c.q, h.batch, head, h.query_start + begin), count, *sizes, grads ? (T)1 : scale, x, rstd);
    if (grads) load_output_grads(h);
    for (int n = count; n < subs * W; n++) {  // fills the last sub-chunk; w is zero there, so it adds nothing
      memset(x + n * sizes->x_pitch, 0, sizes->x_pitch * sizeof(T));
      if (grads) memset(w + n * sizes->u_pitch, 0, sizes->u_pitch * sizeof(T));
    }
    for (int n = 0; n < count; n++) {
      T* xn = x + n * sizes->x_pitch;
      if (grads) memcpy(hat + n * sizes->dim_pitch, xn, dim * sizeof(T));
      if (grads) multiply_row(xn, scale, dim);
      if (wrap) wrap_row(xn, dim, sizes->x_pitch);
    }
    for (int s = 0; s < subs; s++) {
      to_columns(x + (int64_t)s * W * sizes->x_pitch, sizes->x_pitch, dim, columns + (int64_t)s * dim * W);
      if (grads)
        to_columns(w + (int64_t)s * W * sizes->u_pitch, sizes->u_pitch, sizes->shape.columns,
                   w_columns + (int64_t)s * sizes->shape.columns * W);
    }
  }
  // w = [do / g, -(do . o) / g + dg]
  void load_output_grads(const Head& h) {
    const FmCall& c = *h.call;
    const int value_dim = sizes->value_dim, columns = sizes->shape.columns;
    const int64_t token = h.query_start + first;
    T* o = w_columns;  // until it is needed
    if (c.d_o.data) {
      load_rows(c.d_o.data, c.d_o.type, at(c.d_o, h.batch, head, token), c.d_o.token_stride, count, value_dim, w,
                sizes->u_pitch);
      load_rows(c.o.data, c.o.type, at(c.o, h.batch, head, token), c.o.token_stride, count, value_dim, o, columns);
    }
    for (int n = 0; n < count; n++) {
      T *wn = w + n * sizes->u_pitch, g = ((const T*)c.g.data)[at(c.g, h.batch, head, token + n)];
      const bool used = c.d_o.data && g != 0;
      if (used)
        multiply_row(wn, 1 / g, value_dim);
      else
        memset(wn, 0, value_dim * sizeof(T));
      memset(wn + value_dim, 0, (sizes->u_pitch - value_dim) * sizeof(T));
      if (used) wn[value_dim] = -dot((const T*)wn, (const T*)o + (int64_t)n * columns, value_dim);
      if (!c.d_g.data) continue;
      T extra;
      load_row(c.d_g.data, c.d_g.type, at(c.d_g, h.batch, head, token + n), 1, &extra);
      wn[value_dim] += extra;
    }
  }
  void pack_grads() {
    if (sizes->packs) pack(w, sizes->u_pitch, count, sizes->shape.columns, packed);
  }
  const T* packed_grads() const { return sizes->packs ? packed : nullptr; }

  // Equation 19: o = f / g; zero where no key is left, which makes g exactly zero.
  void store_outputs(const Head& h) {
    const FmCall& c = *h.call;
    const int value_dim = sizes->value_dim;
    for (int s = 0; s < subs; s++) {
      T *f = out_of(s), *g = f + (int64_t)value_dim * W, inverse[W];
      for (int w = 0; w < W; w++) inverse[w] = g[w] == 0 ? 0 : 1 / g[w];
      const int rows = (int)least(W, count - s * W);
      const int64_t token = h.query_start + first + s * W, o = at(c.o, h.batch, head, token);
      for (int w = 0; w < rows && c.g.data; w++) ((T*)c.g.data)[at(c.g, h.batch, head, token + w)] = g[w];
      if (rows == W && c.o.type == type_of<T>()) {
        to_rows<T, true>(f, value_dim, (T*)c.o.data + o, c.o.token_stride, inverse);
        continue;
      }
      to_rows<T, true>(f, value_dim, d_rows, sizes->u_pitch, inverse);
      for (int w = 0; w < rows; w++)
        store_row(d_rows + w * sizes->u_pitch, value_dim, c.o.data, c.o.type, o + w * c.o.token_stride);
    }
  }
  // From the gradients of x in d_x to those of the raw queries; returns that of the head's scale.
  double store_grads(const Head& h) {
    const FmCall& c = *h.call;
    const int dim = sizes->shape.dim;
    double d_scale = 0;
    for (int s = 0; s < subs; s++) {
      to_rows(d_x_of(s), dim, d_rows, sizes->dim_pitch);
      const int rows = (int)least(W, count - s * W);
      for (int w = 0; w < rows; w++) {
        T* dn = d_rows + w * sizes->dim_pitch;
        if (c.d_head_scale) d_scale += dot(dn, hat + (s * W + w) * sizes->dim_pitch, dim);
        multiply_row(dn, scale, dim);
      }
      if (c.normalize)
        standardize_rows_vjp(d_rows, sizes->dim_pitch, hat + s * W * sizes->dim_pitch, sizes->dim_pitch, rstd + s * W, rows,
                             dim);
      for (int w = 0; w < rows; w++) {
        const int n = s * W + w;
        const T* dn = d_rows + w * sizes->dim_pitch;
        store_row(dn, dim, c.d_q.data, c.d_q.type, at(c.d_q, h.batch, head, h.query_start + first + n));
      }
    }
    return d_scale * c.scale;
  }
};

}  // namespace FM_LEVEL
