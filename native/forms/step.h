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

// Tokens that join a sum: rows = rows * fade + sum of k u^T.
template <class T>
struct Joining {
  const T* k;       // [tokens][k_pitch]: monomials
  const T* u;       // [tokens][u_pitch]: what they are worth when the last of them has come
  int64_t k_pitch, u_pitch;
  int tokens;
  T fade;
};

// out[V] = q^T rows, for V vectors of columns that stay in registers; tokens that join are added to the rows first. `fade`
// is 1 and u is 0 in lanes of the rows that another call has in its care.
template <class T, int V, bool Joins>
FM_INLINE void read_columns(T* rows, int64_t pitch, int count, const T* q, const Joining<T>& joining, const T* u, Vec<T> fade,
                            Vec<T> (&total)[V]) {
  constexpr int L = LANES<T>;
#pragma GCC unroll 8
  for (int i = 0; i < V; i++) total[i] = Vec<T>{};
  for (int r = 0; r < count; r++, rows += pitch) {
    Vec<T> row[V];
#pragma GCC unroll 8
    for (int i = 0; i < V; i++) row[i] = load(rows + i * L);
    if (Joins) {
#pragma GCC unroll 8
      for (int i = 0; i < V; i++) row[i] *= fade;
      const T *k = joining.k + r, *value = u;
      for (int n = 0; n < joining.tokens; n++, k += joining.k_pitch, value += joining.u_pitch) {
        const Vec<T> by = broadcast(*k);
#pragma GCC unroll 8
        for (int i = 0; i < V; i++) row[i] += by * load(value + i * L);
      }
#pragma GCC unroll 8
      for (int i = 0; i < V; i++) store(rows + i * L, row[i]);
    }
    const Vec<T> by = broadcast(q[r]);
#pragma GCC unroll 8
    for (int i = 0; i < V; i++) total[i] += by * row[i];
  }
}
// out += q^T rows. The sum over these rows is taken by itself: two levels lose less. Columns that fill no vector are the end of
// one that overlaps the vector before; its other lanes are neither changed nor counted. Joining tokens have their u twice, for
// whole vectors and, from `columns` rounded up on, for that last one: zeros in the lanes that are not its own.
template <class T, bool Joins>
void read_rows(T* rows, int columns, int count, const T* q, const Joining<T>& joining, T* out) {
  constexpr int L = LANES<T>;
  const Vec<T> fade = broadcast(joining.fade);
  int j = 0;
  const auto whole = [&](auto vectors) {
    constexpr int V = decltype(vectors)::value;
    Vec<T> total[V];
    read_columns<T, V, Joins>(rows + j, columns, count, q, joining, joining.u + j, fade, total);
#pragma GCC unroll 8
    for (int i = 0; i < V; i++, j += L) store(out + j, load(out + j) + total[i]);
  };
  while (j + 4 * L <= columns) whole(Int<4>{});
  while (j + L <= columns) whole(Int<1>{});
  if (j == columns) return;
  if (columns >= L) {
    T lanes[L];
    for (int i = 0; i < L; i++) lanes[i] = i < L - (columns - j) ? 1 : joining.fade;
    Vec<T> total[1];
    read_columns<T, 1, Joins>(rows + columns - L, columns, count, q, joining, joining.u + round_up(columns, L), load(lanes), total);
    store(lanes, total[0]);
    for (int i = L - (columns - j); i < L; i++, j++) out[j] += lanes[i];
    return;
  }
  for (; j < columns; j++) {
    T total = 0;
    for (int r = 0; r < count; r++) {
      T& row = rows[(int64_t)r * columns + j];
      if (Joins) {
        row *= joining.fade;
        for (int n = 0; n < joining.tokens; n++) row += joining.k[n * joining.k_pitch + r] * joining.u[n * joining.u_pitch + j];
      }
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
