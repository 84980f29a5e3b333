// One step of decoding: state += phi(k) u^T and o = phi(q) state / g, in one pass over a state in the public layout.
#pragma once
#include "run.h"

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

template <class T>
struct Step {
  const FmStep& call;
  const FmPool& pool;
  int dim, columns;
  int64_t features, groups, parts;

  Step(const FmStep& c, const FmPool& p)
      : call(c), pool(p), dim((int)c.head_dim), columns((int)c.value_dim + 1), groups(c.query_heads / most(1, c.key_heads)) {
    features = 1 + dim + (c.order == 2 ? (int64_t)dim * (dim + 1) / 2 : 0);
    const int64_t heads = c.batch * c.key_heads;
    // Rows are split where heads do not fill the threads evenly; a part is not worth it below some thousand numbers.
    parts = heads >= 4 * p.threads || features * columns < 1 << 14 ? 1 : p.threads;
  }
  struct Mine {
    T *x, *u, *k, *q;
  };

  int run() {
    const int64_t heads = call.batch * call.key_heads, pitch = round_up(columns, 16);
    if (heads == 0) return FM_OK;
    Arena shared;
    shared.take<T>(heads * parts * groups * pitch);
    if (!shared.allocate_zeros()) return FM_NO_MEMORY;
    T* sums = shared.take<T>(heads * parts * groups * pitch);
    auto setup = [&](std::atomic<bool>& failed, const auto& run) {
      Arena arena;
      Mine m;
      for (int i = 0; i < 2; i++) {
        m = {arena.take<T>(dim), arena.take<T>(pitch), arena.take<T>(features), arena.take<T>(groups * features)};
        if (i == 0 && !arena.allocate()) {
          failed = true;
          return;
        }
      }
      run(m);
    };
    const bool ok = spread(pool, heads * parts, setup, [&](Mine& mine, int64_t item) {
      const int64_t i = item / parts, part = item % parts;
      const bool counts = load(mine, i / call.key_heads, i % call.key_heads);
      walk(mine, (T*)call.state + i * features * columns, features * part / parts, features * (part + 1) / parts, counts,
           sums + item * groups * pitch, pitch);
    });
    if (!ok) return FM_NO_MEMORY;
    for (int64_t i = 0; i < heads; i++)
      for (int64_t g = 0; g < groups; g++) store_output(i, g, sums + (i * parts * groups + g) * pitch, groups * pitch);
    return FM_OK;
  }

  bool load(Mine& mine, int64_t b, int64_t h) const {
    const bool counts = !call.mask || call.mask[b * call.key_heads + h];
    if (counts) {
      load_row(call.k.data, call.k.type, at(call.k, b, h, 0), dim, mine.x);
      if (call.normalize) standardize(mine.x, dim, (T)call.eps, (T)1);
      public_features(mine.x, dim, (int)call.order, mine.k);
      load_row(call.v.data, call.v.type, at(call.v, b, h, 0), columns - 1, mine.u);
      mine.u[columns - 1] = 1;
    }
    for (int64_t g = 0; g < groups; g++) {
      const int64_t head = h * groups + g;
      const T scale = (T)(call.head_scale ? call.scale * call.head_scale[head] : call.scale);
      load_row(call.q.data, call.q.type, at(call.q, b, head, 0), dim, mine.x);
      if (call.normalize) standardize(mine.x, dim, (T)call.eps, (T)1);
      for (int i = 0; i < dim; i++) mine.x[i] *= scale;
      public_features(mine.x, dim, (int)call.order, mine.q + g * features);
    }
    return counts;
  }
  // Few rows at a time, so that all columns and all query heads find them in the first-level cache.
  void walk(const Mine& mine, T* state, int64_t begin, int64_t end, bool counts, T* sums, int64_t pitch) const {
    constexpr int64_t ROWS_AT_ONCE = 16;
    for (int64_t a = begin; a < end; a += ROWS_AT_ONCE) {
      const int count = (int)least(ROWS_AT_ONCE, end - a);
      for (int64_t g = 0; g < groups; g++)
        step_rows(state + a * columns, columns, count, mine.k + a, mine.q + g * features + a, mine.u, sums + g * pitch,
                  counts && g == 0);
    }
  }
  void store_output(int64_t i, int64_t g, T* sums, int64_t stride) const {
    for (int64_t part = 1; part < parts; part++)
      for (int j = 0; j < columns; j++) sums[j] += sums[part * stride + j];
    const T denominator = sums[columns - 1], inverse = denominator == 0 ? 0 : 1 / denominator;
    for (int j = 0; j < columns - 1; j++) sums[j] *= inverse;
    const int64_t b = i / call.key_heads, head = i % call.key_heads * groups + g;
    store_row(sums, columns - 1, call.o.data, call.o.type, at(call.o, b, head, 0));
  }
};

}  // namespace FM_LEVEL
