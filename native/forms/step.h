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

// out += q^T rows, for V vectors of columns that stay in registers. The sum over these rows is taken by itself first: two levels
// lose less. Two rows at a time go to sums of their own, so that no addition waits for the one before.
template <class T, int V>
FM_INLINE void read_columns(const T* rows, int64_t pitch, int count, const T* q, T* out) {
  constexpr int L = LANES<T>;
  Vec<T> even[V], odd[V];
#pragma GCC unroll 8
  for (int i = 0; i < V; i++) even[i] = odd[i] = Vec<T>{};
  int r = 0;
  for (; r + 2 <= count; r += 2, rows += 2 * pitch) {
    const Vec<T> a = broadcast(q[r]), b = broadcast(q[r + 1]);
#pragma GCC unroll 8
    for (int i = 0; i < V; i++) {
      even[i] += a * load(rows + i * L);
      odd[i] += b * load(rows + pitch + i * L);
    }
  }
  if (r < count) {
    const Vec<T> a = broadcast(q[r]);
#pragma GCC unroll 8
    for (int i = 0; i < V; i++) even[i] += a * load(rows + i * L);
  }
#pragma GCC unroll 8
  for (int i = 0; i < V; i++) store(out + i * L, load(out + i * L) + (even[i] + odd[i]));
}

template <class T>
void read_rows(const T* rows, int columns, int count, const T* q, T* out) {
  constexpr int L = LANES<T>;
  int j = 0;
  for (; j + 4 * L <= columns; j += 4 * L) read_columns<T, 4>(rows + j, columns, count, q, out + j);
  for (; j + L <= columns; j += L) read_columns<T, 1>(rows + j, columns, count, q, out + j);
  if (j == columns) return;
  if (columns < L) {
    for (; j < columns; j++) {
      T total = 0;
      for (int r = 0; r < count; r++) total += q[r] * rows[(int64_t)r * columns + j];
      out[j] += total;
    }
    return;
  }
  // The last columns as a vector that ends with them; of its lanes only theirs count.
  T last[L] = {};
  read_columns<T, 1>(rows + columns - L, columns, count, q, last);
  for (; j < columns; j++) out[j] += last[j - (columns - L)];
}

// f(s) = sum of s^l / l! of one number.
template <class T>
FM_INLINE T similarity_of_one(T s, int order) {
  T f = 1;
  for (int degree = order; degree > 0; degree--) f = 1 + s * f / (T)degree;
  return f;
}

}  // namespace FM_LEVEL
