// One step of decoding for every head: the new token joins the recent ones, and its query reads the sum and sees all of those.
#pragma once
#include "forms/decay.h"
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
        features(c.total ? 1 + dim + (c.order == 2 ? (int64_t)dim * (dim + 1) / 2 : 0) : 0),
        pitch(round_up(columns, 16)),
        // Rows are split where heads do not fill the threads evenly; a part is not worth it below some thousand numbers.
        parts(heads >= 4 * p.threads || features * columns < 1 << 14 ? 1 : p.threads) {}

  int run() {
    if (heads == 0) return FM_OK;
    Workspace shared;
    if (!shared.allocate_zeros([&] { sums = shared.take<T>(heads * parts * groups * pitch); })) return FM_NO_MEMORY;
    if (!run_parallel(pool, heads * parts, ReadPart{*this})) return FM_NO_MEMORY;
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

  // Some rows of a head's sum; the first part of a head also has its recent tokens.
  struct ReadPart {
    struct Worker {
      const Step& step;
      T *q, *phi, *fading;
      Workspace workspace;

      explicit Worker(const ReadPart& task) : step(task.step) {}
      bool allocate() {
        return workspace.allocate([&] {
          q = workspace.take<T>(step.groups * step.dim), phi = workspace.take<T>(step.groups * step.features);
          fading = workspace.take<T>(step.call.recent_count + 1);
        });
      }
    };
    const Step& step;

    void run(Worker& worker, int64_t item) const {
      const int64_t i = item / step.parts, part = item % step.parts;
      T* out = step.sums + item * step.groups * step.pitch;
      step.load_queries(worker, i);
      step.read_sum(worker, i, step.features * part / step.parts, step.features * (part + 1) / step.parts, out);
      if (step.call.log_decay) {
        const T fade = step.load_fading(worker, i);
        for (int64_t g = 0; g < step.groups; g++) multiply_row(out + g * step.pitch, fade, step.columns);
      }
      if (part != 0) return;
      step.keep_token(i);
      step.see_recent(worker, i, out);
    }
  };
  using Worker = typename ReadPart::Worker;

  int64_t batch_of(int64_t i) const { return i / call.key_heads; }
  int64_t head_of(int64_t i) const { return i % call.key_heads; }
  bool counts(int64_t i) const { return !call.mask || call.mask[batch_of(i)]; }
  T* recent_k(int64_t i) const { return (T*)call.recent_k + i * call.recent_capacity * dim; }
  T* recent_u(int64_t i) const { return (T*)call.recent_u + i * call.recent_capacity * columns; }
  T* recent_decay(int64_t i) const { return (T*)call.recent_decay + i * call.recent_capacity; }
  T new_decay(int64_t i) const { return counts(i) ? ((const T*)call.log_decay)[i] : 0; }

  void load_vector(const FmTensor& t, int64_t b, int64_t h, T* x) const {
    T rstd;
    load_normalized(call.normalize, t.data, t.type, at(t, b, h, 0), 0, 1, dim, x, dim, (T)call.eps, (T)1, &rstd);
  }
  void load_queries(Worker& worker, int64_t i) const {
    for (int64_t g = 0; g < groups; g++) {
      const int64_t head = head_of(i) * groups + g;
      T* q = worker.q + g * dim;
      load_vector(call.q, batch_of(i), head, q);
      multiply_row(q, (T)(call.head_scale ? call.scale * call.head_scale[head] : call.scale), dim);
      if (features) public_features(q, dim, (int)call.order, worker.phi + g * features);
    }
  }
  // Few rows at a time, so that all columns and all query heads find them in the first-level cache.
  void read_sum(const Worker& worker, int64_t i, int64_t begin, int64_t end, T* out) const {
    constexpr int64_t ROWS_AT_ONCE = 16;
    const T* total = (const T*)call.total + i * features * columns;
    for (int64_t a = begin; a < end; a += ROWS_AT_ONCE)
      for (int64_t g = 0; g < groups; g++)
        read_rows(total + a * columns, columns, (int)min(ROWS_AT_ONCE, end - a), worker.phi + g * features + a,
                  out + g * pitch);
  }
  // What each recent token has faded by at the new one, which comes last; returns what the sum has faded by.
  T load_fading(Worker& worker, int64_t i) const {
    const int count = (int)call.recent_count;
    double since = 0;
    worker.fading[count] = 0;
    for (int n = count; n-- > 0;) {
      since += n + 1 == count ? new_decay(i) : recent_decay(i)[n + 1];
      worker.fading[n] = (T)since;
    }
    DecayChunk<T>::exp_all(worker.fading, count + 1);
    return exp_of_negative<T>(since + (count ? (double)recent_decay(i)[0] : (double)new_decay(i)));
  }
  void keep_token(int64_t i) const {
    const int64_t n = call.recent_count;
    T *k = recent_k(i) + n * dim, *u = recent_u(i) + n * columns;
    if (call.log_decay) recent_decay(i)[n] = new_decay(i);
    if (!counts(i)) {
      memset(k, 0, dim * sizeof(T));
      memset(u, 0, columns * sizeof(T));
      return;
    }
    load_vector(call.k, batch_of(i), head_of(i), k);
    load_row(call.v.data, call.v.type, at(call.v, batch_of(i), head_of(i), 0), columns - 1, u);
    u[columns - 1] = 1;
  }
  void see_recent(const Worker& worker, int64_t i, T* out) const {
    const T *k = recent_k(i), *u = recent_u(i);
    for (int64_t n = 0; n <= call.recent_count; n++, k += dim, u += columns)
      for (int64_t g = 0; g < groups; g++) {
        T weight = similarity_of_one(dot(worker.q + g * dim, k, dim), (int)call.order);
        if (call.log_decay) weight *= worker.fading[n];
        T* sum = out + g * pitch;
        for (int j = 0; j < columns; j++) sum[j] += weight * u[j];
      }
  }
  void store_output(int64_t i, int64_t g) const {
    T* total = sums + (i * parts * groups + g) * pitch;
    for (int64_t part = 1; part < parts; part++)
      for (int j = 0; j < columns; j++) total[j] += total[part * groups * pitch + j];
    const T denominator = total[columns - 1], inverse = denominator == 0 ? 0 : 1 / denominator;
    for (int j = 0; j < columns - 1; j++) total[j] *= inverse;
    store_row(total, columns - 1, call.o.data, call.o.type, at(call.o, batch_of(i), head_of(i) * groups + g, 0));
  }
};

}  // namespace FM_LEVEL
