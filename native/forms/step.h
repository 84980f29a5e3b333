// One step of decoding on rows of a state in the public layout: state += phi(k) u^T and phi(q) state, in one pass.
#pragma once
#include "tiles/features.h"

namespace FM_LEVEL {

// phi of the public layout: by degree, then lexicographic, x^a / sqrt(a!).
template <class T>
void public_features(const T* x, int dim, int order, T* out) {
  *out++ = 1;
  for (int i = 0; i < dim; i++) *out++ = x[i];
  for (int m = 0; order == 2 && m < dim; m++) {
    const T xm = x[m];
    for (int i = m; i < dim; i++) out[i - m] = xm * x[i];
    out[0] *= (T)ROOT_HALF;
    out += dim - m;
  }
}

// rows += k u^T, `add` told, and out += q^T rows, for V vectors of columns that stay in registers.
// The sum over these rows is taken by itself first: two levels lose less.
template <class T, int V>
FM_INLINE void step_columns(T* rows, int64_t pitch, int count, const T* k, const T* q, const T* u, T* out, bool add) {
  constexpr int L = LANES<T>;
  Vec<T> value[V], total[V];
#pragma GCC unroll 8
  for (int i = 0; i < V; i++) value[i] = load(u + i * L), total[i] = Vec<T>{};
  for (int r = 0; r < count; r++, rows += pitch) {
    const Vec<T> kr = broadcast(k[r]), qr = broadcast(q[r]);
#pragma GCC unroll 8
    for (int i = 0; i < V; i++) {
      Vec<T> s = load(rows + i * L);
      if (add) store(rows + i * L, s += kr * value[i]);
      total[i] += qr * s;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < V; i++) store(out + i * L, load(out + i * L) + total[i]);
}

template <class T>
void step_rows(T* rows, int columns, int count, const T* k, const T* q, const T* u, T* out, bool add) {
  constexpr int L = LANES<T>;
  int j = 0;
  for (; j + 4 * L <= columns; j += 4 * L) step_columns<T, 4>(rows + j, columns, count, k, q, u + j, out + j, add);
  for (; j + L <= columns; j += L) step_columns<T, 1>(rows + j, columns, count, k, q, u + j, out + j, add);
  for (; j < columns; j++) {
    T total = 0;
    for (int r = 0; r < count; r++) {
      T& s = rows[(int64_t)r * columns + j];
      if (add) s += k[r] * u[j];
      total += q[r] * s;
    }
    out[j] += total;
  }
}

}  // namespace FM_LEVEL
