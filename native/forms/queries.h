// A chunk of queries: loaded from the tensors, its outputs and gradients stored back.
#pragma once
#include "forms/head.h"

namespace FM_LEVEL {

// Queries of one head, up to `capacity` tokens: x, [tokens][dim] times the scale, and the same transposed per sub-chunk.
template <class T>
struct QueryChunk {
  static constexpr int W = WIDE<T>;
  const Sizes<T>* sizes;
  T *x, *x_transposed, *out, *rstd;  // x_transposed: [sub][dim][W], out: [sub][columns][W]
  TokenDropout<T> dropout;
  T *hat, *w, *w_transposed, *packed, *d_x, *d_rows;  // only for gradients
  int64_t first = 0, head = 0;
  int count = 0, subs = 0;
  T scale = 1;
  const T* centre = nullptr;  // of the sums that are read, or null; value and slope are used only with one
  T *value, *slope;           // [tokens]
  bool rounds_grads = false;  // w to bf16, but for the part of the denominator, which is made of the rounded ones

  void take(Workspace& workspace, const Sizes<T>& s, int64_t capacity, bool grads) {
    sizes = &s;
    x = workspace.take<T>(capacity * s.x_pitch);
    x_transposed = workspace.take<T>(s.transposed_size(capacity));
    out = workspace.take<T>(capacity * s.shape.columns);
    rstd = workspace.take<T>(capacity);
    dropout.take(workspace, capacity);
    value = workspace.take<T>(round_up(capacity, W)), slope = workspace.take<T>(round_up(capacity, W));
    d_rows = workspace.take<T>(W * max(s.u_pitch, s.dim_pitch));
    if (!grads) return;
    hat = workspace.take<T>(capacity * s.dim_pitch);
    w = workspace.take<T>(capacity * s.u_pitch);
    w_transposed = workspace.take<T>(capacity * s.shape.columns);
    packed = workspace.take<T>(capacity * s.shape.columns);
    d_x = workspace.take<T>(s.transposed_size(capacity));
  }
  const T* x_transposed_of(int sub) const { return x_transposed + (int64_t)sub * sizes->shape.dim * W; }
  const T* w_transposed_of(int sub) const { return w_transposed + (int64_t)sub * sizes->shape.columns * W; }
  T* out_of(int sub) const { return out + (int64_t)sub * sizes->shape.columns * W; }
  T* d_x_of(int sub) const { return d_x + (int64_t)sub * sizes->shape.dim * W; }

  // Gradients need rows, which `wrap` continues cyclically; outputs need only columns.
  void load_tokens(const Head& h, int64_t group, int64_t begin, int64_t end, bool grads, bool wrap) {
    const FmCall& c = *h.call;
    head = h.key_head * h.groups + group;
    scale = (T)(c.head_scale ? c.scale * c.head_scale[head] : c.scale);
    first = begin;
    count = (int)max(0, end - begin);
    subs = (count + W - 1) / W;
    dropout.load(c, 0, h.batch * c.query_heads + head, c.queries, h.query_start + begin, count);
    if (grads) load_output_grads(h);
    load_rest(h, grads || wrap ? 0 : load_columns(h), grads, wrap);
    if (centre) see_centre();
  }
  // f(b) and f'(b), for b = x . centre
  void see_centre() {
    for (int64_t i = 0; i < subs * W; i += LANES<T>) {
      const T* columns = x_transposed_of((int)(i / W)) + i % W;
      Vec<T> b{};
      for (int m = 0; m < sizes->shape.dim; m++) b += load(columns + m * W) * centre[m];
      store(value + i, similarity<T, 2>(b));
      store(slope + i, similarity<T, 1>(b));
    }
  }
  // The centre for the tokens from `token` on.
  Centre<T> about(int64_t token) const { return centre ? Centre<T>{centre, value + token, slope + token} : Centre<T>{}; }
  int64_t at_query(const Head& h, int64_t n) const { return at(h.call->q, h.batch, head, h.query_start + first + n); }

  // Loads whole sub-chunks straight to columns; returns their number.
  int load_columns(const Head& h) {
    const FmCall& c = *h.call;
    const int dim = sizes->raw_dim;
    if (c.q.type != type_of<T>() || c.normalize == FM_AS_IT_IS || dim % LANES<T> != 0) return 0;
    const int whole = count / W;
    for (int s = 0; s < whole; s++) {
      const T* factors = dropout.drops ? dropout.factors + s * W : nullptr;
      T *to = x_transposed + (int64_t)s * sizes->shape.dim * W, *r = rstd + s * W;
      load_normalized_columns(c.normalize, (const T*)c.q.data + at_query(h, s * W), c.q.token_stride, dim, (T)c.eps, scale,
                              factors, sizes->reduces ? reflection<T>(dim) : 0, to, r);
      if (any_huge(r)) mend_huge(h, s, to, r);
    }
    return whole;
  }
  static bool any_huge(const T* rstd) {
    bool found = false;
    for (int w = 0; w < W; w++) found |= !(rstd[w] >= 1 / HUGE_STD<T>);
    return found;
  }
  // Loads tokens whose squares overflow, one by one, through rows.
  FM_NOINLINE void mend_huge(const Head& h, int s, T* columns, T* r) {
    for (int w = 0; w < W; w++) {
      if (r[w] >= 1 / HUGE_STD<T>) continue;
      load_rows_at(h, s * W + w, 1, false);
      for (int i = 0; i < sizes->shape.dim; i++) columns[i * W + w] = x[(s * W + w) * sizes->x_pitch + i];
    }
  }

  // Loads `rows` tokens from n on, as rows.
  void load_rows_at(const Head& h, int n, int rows, bool grads) {
    load_vectors(*h.call, h.call->q, at_query(h, n), rows, *sizes, grads ? (T)1 : scale, x + n * sizes->x_pitch, rstd + n);
    const int dim = sizes->raw_dim;
    const T by = reflection<T>(dim);
    for (; rows > 0; rows--, n++) {
      T* xn = x + n * sizes->x_pitch;
      if (grads) memcpy(hat + n * sizes->dim_pitch, xn, dim * sizeof(T));
      if (grads) multiply_row(xn, scale, dim);
      if (dropout.drops) multiply_row(xn, dropout.factors[n], dim);
      if (sizes->reduces) reduce_row(xn, by, dim);
    }
  }
  // Loads the sub-chunks from `from` on as rows, and makes columns of them.
  void load_rest(const Head& h, int from, bool grads, bool wrap) {
    load_rows_at(h, from * W, count - from * W, grads);
    for (int n = count; n < subs * W; n++) {  // fills the last sub-chunk; w is zero there, so it adds nothing
      memset(x + n * sizes->x_pitch, 0, sizes->x_pitch * sizeof(T));
      if (grads) memset(w + n * sizes->u_pitch, 0, sizes->u_pitch * sizeof(T));
    }
    for (int n = 0; wrap && n < count; n++) wrap_row(sizes->features, x + n * sizes->x_pitch, sizes->x_pitch);
    for (int s = from; s < subs; s++) {
      transpose_to_channel_major(x + (int64_t)s * W * sizes->x_pitch, sizes->x_pitch, sizes->raw_dim,
                                 x_transposed + (int64_t)s * sizes->shape.dim * W);
      if (grads)
        transpose_to_channel_major(w + (int64_t)s * W * sizes->u_pitch, sizes->u_pitch, sizes->shape.columns,
                                   w_transposed + (int64_t)s * sizes->shape.columns * W);
    }
  }
  // w = [do / g, -(do . o) / g + dg]
  void load_output_grads(const Head& h) {
    const FmCall& c = *h.call;
    const int value_dim = sizes->value_dim, columns = sizes->shape.columns;
    const int64_t token = h.query_start + first;
    T* o = w_transposed;  // until it is needed
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
      for (int i = 0; rounds_grads && i < value_dim; i++) wn[i] = (T)from_bf16(to_bf16((float)wn[i]));
      memset(wn + value_dim, 0, (sizes->u_pitch - value_dim) * sizeof(T));
      if (used) wn[value_dim] = -dot((const T*)wn, (const T*)o + (int64_t)n * columns, value_dim);
      if (!c.d_g.data) continue;
      T extra = 0;
      load_row(c.d_g.data, c.d_g.type, at(c.d_g, h.batch, head, token + n), 1, &extra);
      wn[value_dim] += extra;
    }
  }
  void pack_grads(Range tokens) {
    if (sizes->packs)
      pack(w + tokens.begin * sizes->u_pitch, sizes->u_pitch, (int)(tokens.end - tokens.begin), sizes->shape.columns, packed);
  }
  const T* packed_grads() const { return sizes->packs ? packed : nullptr; }

  // Equation 19: o = f / g; zero where no key is left, which makes g exactly zero.
  void store_outputs(const Head& h) {
    const FmCall& c = *h.call;
    const int value_dim = sizes->value_dim;
    for (int s = 0; s < subs; s++) {
      T *f = out_of(s), *g = f + (int64_t)value_dim * W, inverse[W];
      for (int w = 0; w < W; w++) inverse[w] = g[w] == 0 ? 0 : 1 / g[w];
      const int rows = (int)min(W, count - s * W);
      const int64_t token = h.query_start + first + s * W, o = at(c.o, h.batch, head, token);
      for (int w = 0; w < rows && c.g.data; w++) ((T*)c.g.data)[at(c.g, h.batch, head, token + w)] = g[w];
      if (rows == W && c.o.type == type_of<T>()) {
        transpose_to_token_major<T, true>(f, value_dim, (T*)c.o.data + o, c.o.token_stride, inverse);
        continue;
      }
      transpose_to_token_major<T, true>(f, value_dim, d_rows, sizes->u_pitch, inverse);
      for (int w = 0; w < rows; w++)
        store_row(d_rows + w * sizes->u_pitch, value_dim, c.o.data, c.o.type, o + w * c.o.token_stride);
    }
  }
  // Turns the gradients of x in d_x into those of the raw queries; returns the gradient of the head's scale.
  double store_grads(const Head& h) {
    const FmCall& c = *h.call;
    const int dim = sizes->raw_dim;
    const T by = reflection<T>(dim);
    double d_scale = 0;
    for (int s = 0; s < subs; s++) {
      transpose_to_token_major(d_x_of(s), dim, d_rows, sizes->dim_pitch);
      const int rows = (int)min(W, count - s * W);
      for (int w = 0; w < rows; w++) {
        T* dn = d_rows + w * sizes->dim_pitch;
        if (sizes->reduces) reduce_row_vjp(dn, by, dim);
        if (dropout.drops) multiply_row(dn, dropout.factors[s * W + w], dim);
        if (c.d_head_scale) d_scale += dot(dn, hat + (s * W + w) * sizes->dim_pitch, dim);
        multiply_row(dn, scale, dim);
      }
      normalize_vjp(c.normalize, d_rows, sizes->dim_pitch, (const T*)hat + s * W * sizes->dim_pitch, sizes->dim_pitch,
                    (const T*)rstd + s * W, rows, dim);
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
