// One step of decoding on a sum in the public layout and on the recent tokens beside it: phi(q) sum, and f(q . k) u densely.
#pragma once
#include "tiles/dense.h"
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

// A token that joins a sum: rows = rows * fade + k u^T.
template <class T>
struct Joining {
  const T *k, *u;
  T fade;
};

// out += q^T rows, for V vectors of columns that stay in registers; `joining`, unless null, is added to the rows first. The sum
// over these rows is taken by itself: two levels lose less.
template <class T, int V, bool Joins>
FM_INLINE void read_columns(T* rows, int64_t pitch, int count, const T* q, const Joining<T>& joining, int column, T* out) {
  constexpr int L = LANES<T>;
  Vec<T> value[V], total[V];
#pragma GCC unroll 8
  for (int i = 0; i < V; i++) value[i] = Joins ? load(joining.u + column + i * L) : Vec<T>{}, total[i] = Vec<T>{};
  for (int r = 0; r < count; r++, rows += pitch) {
    const Vec<T> by = broadcast(q[r]), k = broadcast(Joins ? joining.k[r] : (T)0);
#pragma GCC unroll 8
    for (int i = 0; i < V; i++) {
      Vec<T> row = load(rows + i * L);
      if (Joins) store(rows + i * L, row = row * joining.fade + k * value[i]);
      total[i] += by * row;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < V; i++) store(out + i * L, load(out + i * L) + total[i]);
}
template <class T, bool Joins>
void read_rows(T* rows, int columns, int count, const T* q, const Joining<T>& joining, T* out) {
  constexpr int L = LANES<T>;
  int j = 0;
  for (; j + 4 * L <= columns; j += 4 * L) read_columns<T, 4, Joins>(rows + j, columns, count, q, joining, j, out + j);
  for (; j + L <= columns; j += L) read_columns<T, 1, Joins>(rows + j, columns, count, q, joining, j, out + j);
  for (; j < columns; j++) {
    T total = 0;
    for (int r = 0; r < count; r++) {
      T& row = rows[(int64_t)r * columns + j];
      if (Joins) row = row * joining.fade + joining.k[r] * joining.u[j];
      total += q[r] * row;
    }
    out[j] += total;
  }
}

// f(s) = sum of s^l / l! of one number.
template <class T>
FM_INLINE T similarity_of_one(T s, int order) {
  T f = 1;
  for (int degree = order; degree > 0; degree--) f = 1 + s * f / (T)degree;
  return f;
}

}  // namespace FM_LEVEL
