// A chunk of keys and values: loaded from the tensors, and its gradients stored back.
#pragma once
#include "forms/head.h"

namespace FM_LEVEL {

// Keys and values of up to `capacity` tokens. A key that does not count is all zeros, so that it adds nothing anywhere.
template <class T>
struct KeyChunk {
  const Sizes<T>* sizes;
  T *x, *u, *packed, *rstd;
  TokenDropout<T> dropout;
  int64_t first = 0;
  int count = 0;
  bool are_finite = true;  // true if the values are; set only where it matters

  void take(Workspace& workspace, const Sizes<T>& s, int64_t capacity) {
    sizes = &s;
    x = workspace.take<T>(capacity * s.x_pitch);
    u = workspace.take<T>(capacity * s.u_pitch);
    packed = workspace.take<T>(capacity * s.shape.columns);
    rstd = workspace.take<T>(capacity);
    dropout.take(workspace, capacity);
  }
  bool counts(const Head& h, int64_t token) const {
    const FmCall& c = *h.call;
    return !c.mask || c.mask[h.batch * c.mask_batch_stride + h.key_head * c.mask_head_stride +
                             (h.key_start + token) * c.mask_token_stride];
  }
  void load_tokens(const Head& h, int64_t begin, int64_t end, bool wrap) {
    const FmCall& c = *h.call;
    const int dim = sizes->raw_dim, value_dim = sizes->value_dim;
    const T by = reflection<T>(dim);
    first = begin;
    count = (int)max(0, end - begin);
    const int64_t token = h.key_start + begin;
    load_vectors(c, c.k, at(c.k, h.batch, h.key_head, token), count, *sizes, (T)1, x, rstd);
    load_rows(c.v.data, c.v.type, at(c.v, h.batch, h.key_head, token), c.v.token_stride, count, value_dim, u, sizes->u_pitch);
    for (int n = 0; n < count; n++) u[n * sizes->u_pitch + value_dim] = 1;
    for (int n = 0; c.mask && n < count; n++) {
      if (counts(h, begin + n)) continue;
      memset(x + n * sizes->x_pitch, 0, sizes->x_pitch * sizeof(T));
      memset(u + n * sizes->u_pitch, 0, sizes->u_pitch * sizeof(T));
    }
    are_finite = !c.is_causal || rows_are_finite(u, sizes->u_pitch, count, value_dim);
    dropout.load(c, 1, h.batch * c.key_heads + h.key_head, c.keys, token, count);
    for (int n = 0; dropout.drops && n < count; n++) multiply_row(x + n * sizes->x_pitch, dropout.factors[n], dim);
    for (int n = 0; sizes->reduces && n < count; n++) reduce_row(x + n * sizes->x_pitch, by, dim);
    for (int n = 0; wrap && n < count; n++) wrap_row(sizes->features, x + n * sizes->x_pitch, sizes->x_pitch);
  }
  // centre[x_pitch] = the mean of the keys that count among some that are spread over the sequence or, if causal, its first
  // chunk, of which only later chunks read a sum. Any point is exact. Unlike keys have such a mean by chance, which would only
  // make numbers larger: it is reduced by what independent keys of that spread have on average. Uses the rows.
  static constexpr int MEAN_OF = 32;
  void find_centre(const Head& h, T* centre) {
    const FmCall& c = *h.call;
    const int dim = sizes->raw_dim;
    const int64_t tokens = c.is_causal ? min(h.keys, sizes->chunk) : h.keys, step = (tokens + MEAN_OF - 1) / MEAN_OF;
    FmTensor some = c.k;
    some.token_stride *= step;
    count = step ? (int)((tokens + step - 1) / step) : 0;
    load_vectors(c, some, at(c.k, h.batch, h.key_head, h.key_start), count, *sizes, (T)1, x, rstd);
    memset(centre, 0, sizes->x_pitch * sizeof(T));
    T used = 0, squares = 0;
    for (int n = 0; n < count; n++) {
      const T* key = x + n * sizes->x_pitch;
      if (!counts(h, n * step)) continue;
      used++, squares += dot(key, key, dim);
      for (int i = 0; i < dim; i++) centre[i] += key[i];
    }
    const T length = dot((const T*)centre, (const T*)centre, dim),
            by_chance = used > 1 ? (squares - length / used) / (used - 1) : 0;
    multiply_row(centre, length > used * by_chance ? (1 - used * by_chance / length) / used : 0, dim);
    if (sizes->reduces) reduce_row(centre, reflection<T>(dim), dim);
    if (sizes->wraps) wrap_row(sizes->features, centre, sizes->x_pitch);
  }
  void subtract(const T* centre) {
    for (int64_t i = 0; i < sizes->x_pitch; i += LANES<T>) {
      const Vec<T> c = load(centre + i);
      for (T* at = x + i; at < x + count * sizes->x_pitch; at += sizes->x_pitch) store(at, load(at) - c);
    }
  }
  void pack_values() { pack_values({0, count}); }
  void pack_values(Range tokens) {
    if (sizes->packs)
      pack(u + tokens.begin * sizes->u_pitch, sizes->u_pitch, (int)(tokens.end - tokens.begin), sizes->shape.columns, packed);
  }
  const T* packed_values() const { return sizes->packs ? packed : nullptr; }
  Keys<T> dense() const { return {x, sizes->x_pitch, u, sizes->u_pitch, packed_values(), count, are_finite}; }

  // Some of the tokens. Their values must be the packed ones.
  Keys<T> dense(Range tokens) const {
    return {
        x + tokens.begin * sizes->x_pitch, sizes->x_pitch, u + tokens.begin * sizes->u_pitch, sizes->u_pitch, packed_values(),
        (int)(tokens.end - tokens.begin)};
  }

  // Multiplies the values of some tokens by their factors, and packs these.
  void fade_values(const T* factors, Range tokens) {
    for (int64_t n = tokens.begin; n < tokens.end; n++) multiply_row(u + n * sizes->u_pitch, factors[n], sizes->shape.columns);
    pack_values(tokens);
  }

  // d_x holds the gradients of the standardized keys, which must not be wrapped; both are overwritten. With decay, d_sums are
  // the gradients of its sums at the chunk's tokens.
  void store_grads(const Head& h, T* d_x, int64_t d_x_pitch, const T* d_v, int64_t d_v_pitch, const T* d_sums) const {
    const FmCall& c = *h.call;
    const int dim = sizes->raw_dim, value_dim = sizes->value_dim;
    const T by = reflection<T>(dim);
    for (int n = 0; sizes->reduces && n < count; n++) {
      reduce_row_vjp(d_x + n * d_x_pitch, by, dim);
      restore_row(x + n * sizes->x_pitch, by, dim);
    }
    for (int n = 0; dropout.drops && n < count; n++) {
      multiply_row(d_x + n * d_x_pitch, dropout.factors[n], dim);
      multiply_row(x + n * sizes->x_pitch, 1 / dropout.scale, dim);  // as before; a dropped token is not needed
    }
    normalize_vjp(c.normalize, d_x, d_x_pitch, (const T*)x, sizes->x_pitch, (const T*)rstd, count, dim);
    for (int n = 0; n < count; n++) {
      T* dn = d_x + n * d_x_pitch;
      const T* vn = d_v + n * d_v_pitch;
      if (!counts(h, first + n)) {
        memset(dn, 0, dim * sizeof(T));
        vn = nullptr;
      }
      const int64_t token = h.key_start + first + n;
      if (c.d_decay.data) ((T*)c.d_decay.data)[at(c.d_decay, h.batch, h.key_head, token)] = d_sums[n];
      store_row(dn, dim, c.d_k.data, c.d_k.type, at(c.d_k, h.batch, h.key_head, token));
      store_row(vn ? vn : zeros(), value_dim, c.d_v.data, c.d_v.type, at(c.d_v, h.batch, h.key_head, token));
    }
  }
  static const T* zeros() {
    static const T z[FM_MAX_DIM] = {};
    return z;
  }
};

}  // namespace FM_LEVEL
