// One step of decoding on a sum in the public layout and on the recent tokens beside it: phi(q) sum, and f(q . k) u densely.
#pragma once
#include "tiles/dense.h"
#include "tiles/features.h"
#include "tiles/standardize.h"

namespace FM_LEVEL {

// phi of the public layout: by degree, then lexicographic, x^a / sqrt(a!). Whole vectors are written: up to LANES - 1 numbers
// behind the last.
template <class T>
void public_features(const T* x, int dim, int order, T* out) {
  constexpr int L = LANES<T>;
  T padded[FM_MAX_DIM + L] = {};
  memcpy(padded, x, dim * sizeof(T));
  *out++ = 1;
  memcpy(out, x, dim * sizeof(T));
  out += dim;
  for (int m = 0; order == 2 && m < dim; m++) {
    for (int i = m; i < dim; i += L) store(out + i - m, load(padded + i) * padded[m]);
    out[0] *= (T)ROOT_HALF;
    out += dim - m;
  }
}

// Tokens that join a sum: rows = rows * fade + sum of k u^T.
template <class T>
struct Joining {
  const T* k;  // [tokens][k_pitch]: monomials
  const T* u;  // [tokens][u_pitch]: their values, faded to the last of them
  int64_t k_pitch, u_pitch;
  int tokens;
  T fade;
};

// The number of tokens that join: none, four whose values stay in registers, or any number; and four where nothing fades.
enum { NONE, FOUR, FOUR_UNFADED, ANY };

// out += q^T rows, for V vectors of columns and, if Last, the one column behind them, all in registers; tokens that join are
// added to the rows first. The sum over these rows is taken separately, because two levels lose less.
template <class T, int V, bool Last, int Joins>
FM_INLINE void read_columns(T* rows, int64_t pitch, int count, const T* q, const Joining<T>& joining, const T* u, T* out) {
  constexpr int L = LANES<T>, END = V * L;
  constexpr bool IS_FOUR = Joins == FOUR || Joins == FOUR_UNFADED;
  const Vec<T> fade = broadcast(joining.fade);
  Vec<T> values[4][V ? V : 1], total[V ? V : 1];
  T last_total = 0;
#pragma GCC unroll 8
  for (int i = 0; i < V; i++) total[i] = Vec<T>{};
  if (IS_FOUR)
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++)
#pragma GCC unroll 8
      for (int i = 0; i < V; i++) values[n][i] = load(u + n * joining.u_pitch + i * L);
  for (int r = 0; r < count; r++, rows += pitch) {
    Vec<T> row[V ? V : 1];
    T last = Last ? rows[END] : 0;
#pragma GCC unroll 8
    for (int i = 0; i < V; i++) row[i] = load(rows + i * L);
    if (Joins == FOUR || Joins == ANY) {
      last *= joining.fade;
#pragma GCC unroll 8
      for (int i = 0; i < V; i++) row[i] *= fade;
    }
    if (IS_FOUR)
#pragma GCC unroll 4
      for (int n = 0; n < 4; n++) {
        const T k = joining.k[n * joining.k_pitch + r];
        if (Last) last += k * u[n * joining.u_pitch + END];
        const Vec<T> by = broadcast(k);
#pragma GCC unroll 8
        for (int i = 0; i < V; i++) row[i] += by * values[n][i];
      }
    if (Joins == ANY)
      for (int n = 0; n < joining.tokens; n++) {
        const T k = joining.k[n * joining.k_pitch + r];
        if (Last) last += k * u[n * joining.u_pitch + END];
        const Vec<T> by = broadcast(k);
#pragma GCC unroll 8
        for (int i = 0; i < V; i++) row[i] += by * load(u + n * joining.u_pitch + i * L);
      }
    if (Joins != NONE) {
      if (Last) rows[END] = last;
#pragma GCC unroll 8
      for (int i = 0; i < V; i++) store(rows + i * L, row[i]);
    }
    if (Last) last_total += q[r] * last;
    const Vec<T> by = broadcast(q[r]);
#pragma GCC unroll 8
    for (int i = 0; i < V; i++) total[i] += by * row[i];
  }
  if (Last) out[END] += last_total;
#pragma GCC unroll 8
  for (int i = 0; i < V; i++) store(out + i * L, load(out + i * L) + total[i]);
}
// All columns: whole vectors, four at a time, the denominator's with the last of them, others one by one.
template <class T, int Joins>
void read_rows(T* rows, int columns, int count, const T* q, const Joining<T>& joining, T* out) {
  constexpr int L = LANES<T>;
  int j = 0;
  const auto some = [&](auto vectors, auto last) {
    constexpr int V = decltype(vectors)::value, Last = decltype(last)::value;
    read_columns<T, V, Last, Joins>(rows + j, columns, count, q, joining, joining.u + j, out + j);
    j += V * L + Last;
  };
  while (columns - j > 4 * L + 1) some(Int<4>{}, Int<0>{});
  if (columns - j == 4 * L + 1) some(Int<4>{}, Int<1>{});
  if (columns - j == 2 * L + 1) some(Int<2>{}, Int<1>{});
  while (columns - j >= L) some(Int<1>{}, Int<0>{});
  while (columns - j > 0) some(Int<0>{}, Int<1>{});
}

// weights[n] = f(q . k[n]) for `count` keys, LANES of them at a time: numbers up to the next multiple of LANES are written.
template <class T>
void weigh_keys(const T* q, const T* k, int dim, int order, int64_t count, T* weights) {
  constexpr int L = LANES<T>;
  for (int64_t n = 0; n < count; n += L) {
    Vec<T> parts[L];
    for (int i = 0; i < L; i++) parts[i] = n + i < count ? dot_lanes(q, k + (n + i) * dim, dim) : Vec<T>{};
    const Vec<T> s[1][2] = {{sums<T>(parts)}};
    T both[2 * L];
    store_similarity<T, 1>(s, order, nullptr, both);
    if (order > 2) similarity_of_high_order(both, L, order);
    store(weights + n, load((const T*)both));
  }
}

}  // namespace FM_LEVEL
