// One step of decoding for every head: state += phi(k) u^T and o = phi(q) state / g.
#pragma once
#include "forms/head.h"
#include "forms/step.h"
#include "schedule/threads.h"

namespace FM_LEVEL {

template <class T>
class Step {
 public:
  Step(const FmStep& c, const FmPool& p)
      : call(c),
        pool(p),
        dim((int)c.head_dim),
        columns((int)c.value_dim + 1),
        heads(c.batch * c.key_heads),
        groups(heads ? c.query_heads / c.key_heads : 0),
        features(1 + dim + (c.order == 2 ? (int64_t)dim * (dim + 1) / 2 : 0)),
        pitch(round_up(columns, 16)),
        // Rows are split where heads do not fill the threads evenly; a part is not worth it below some thousand numbers.
        parts(heads >= 4 * p.threads || features * columns < 1 << 14 ? 1 : p.threads) {}

  int run() {
    if (heads == 0) return FM_OK;
    Workspace shared;
    if (!shared.allocate_zeros([&] { sums = shared.take<T>(heads * parts * groups * pitch); })) return FM_NO_MEMORY;
    if (!run_parallel(pool, heads * parts, WalkRows{*this})) return FM_NO_MEMORY;
    for (int64_t i = 0; i < heads; i++)
      for (int64_t g = 0; g < groups; g++) store_output(i, g);
    return FM_OK;
  }

 private:
  const FmStep& call;
  const FmPool& pool;
  const int dim, columns;
  const int64_t heads, groups, features, pitch, parts;
  T* sums = nullptr;  // [heads][parts][groups][pitch]

  // The rows of one part of a head's state.
  struct WalkRows {
    struct Worker {
      const Step& step;
      T *x, *u, *k, *q;
      Workspace workspace;

      explicit Worker(const WalkRows& task) : step(task.step) {}
      bool allocate() {
        return workspace.allocate([&] {
          x = workspace.take<T>(step.dim), u = workspace.take<T>(step.pitch);
          k = workspace.take<T>(step.features), q = workspace.take<T>(step.groups * step.features);
        });
      }
    };
    const Step& step;

    void run(Worker& worker, int64_t item) const {
      const int64_t i = item / step.parts, part = item % step.parts;
      const bool counts = step.load(worker, i / step.call.key_heads, i % step.call.key_heads);
      step.walk(worker, (T*)step.call.state + i * step.features * step.columns, step.features * part / step.parts,
                step.features * (part + 1) / step.parts, counts, step.sums + item * step.groups * step.pitch);
    }
  };
  using Worker = typename WalkRows::Worker;

  void load_vector(const FmTensor& t, int64_t b, int64_t h, T* x) const {
    T rstd;
    if (call.normalize)
      load_standardized(t.data, t.type, at(t, b, h, 0), 0, 1, dim, x, dim, (T)call.eps, (T)1, &rstd);
    else
      load_row(t.data, t.type, at(t, b, h, 0), dim, x);
  }
  // The features of one key head and of the query heads that read it; false if the key does not count.
  bool load(Worker& worker, int64_t b, int64_t h) const {
    const bool counts = !call.mask || call.mask[b * call.key_heads + h];
    if (counts) {
      load_vector(call.k, b, h, worker.x);
      public_features(worker.x, dim, (int)call.order, worker.k);
      load_row(call.v.data, call.v.type, at(call.v, b, h, 0), columns - 1, worker.u);
      worker.u[columns - 1] = 1;
    }
    for (int64_t g = 0; g < groups; g++) {
      const int64_t head = h * groups + g;
      const T scale = (T)(call.head_scale ? call.scale * call.head_scale[head] : call.scale);
      load_vector(call.q, b, head, worker.x);
      for (int i = 0; i < dim; i++) worker.x[i] *= scale;
      public_features(worker.x, dim, (int)call.order, worker.q + g * features);
    }
    return counts;
  }
  // Few rows at a time, so that all columns and all query heads find them in the first-level cache.
  void walk(const Worker& worker, T* state, int64_t begin, int64_t end, bool counts, T* out) const {
    constexpr int64_t ROWS_AT_ONCE = 16;
    for (int64_t a = begin; a < end; a += ROWS_AT_ONCE) {
      const int count = (int)min(ROWS_AT_ONCE, end - a);
      for (int64_t g = 0; g < groups; g++)
        step_rows(state + a * columns, columns, count, worker.k + a, worker.q + g * features + a, worker.u, out + g * pitch,
                  counts && g == 0);
    }
  }
  void store_output(int64_t i, int64_t g) const {
    T* total = sums + (i * parts * groups + g) * pitch;
    for (int64_t part = 1; part < parts; part++)
      for (int j = 0; j < columns; j++) total[j] += total[part * groups * pitch + j];
    const T denominator = total[columns - 1], inverse = denominator == 0 ? 0 : 1 / denominator;
    for (int j = 0; j < columns - 1; j++) total[j] *= inverse;
    const int64_t b = i / call.key_heads, head = i % call.key_heads * groups + g;
    store_row(total, columns - 1, call.o.data, call.o.type, at(call.o, b, head, 0));
  }
};

}  // namespace FM_LEVEL
