// One step of decoding for every head: the new token joins the recent ones, and its query reads the sum and sees the recent
// tokens. If there is no room for the new token, the oldest recent tokens join the sum in the same pass that reads it.
#pragma once
#include "forms/decay.h"
#include "forms/step.h"
#include "schedule/check.h"
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
        // Rows are split where heads do not fill the threads evenly. Below some thousand numbers a part is not worth it.
        parts(heads >= 4 * p.threads || features * columns < 1 << 14 ? 1 : p.threads) {}

  int run() {
    if (heads == 0) return FM_OK;
    if (const int status = check_decays<T>(call)) return status;
    Workspace shared;
    if (!shared.allocate_zeros([&] { sums = shared.take<T>(heads * parts * groups * pitch); })) return FM_NO_MEMORY;
    if (!run_shares(pool, heads * parts, ReadPart{*this})) return FM_NO_MEMORY;
    // the recent tokens change only after the last read of the sum
    return parts == 1 || run_shares(pool, heads, SeeRecent{*this}) ? FM_OK : FM_NO_MEMORY;
  }

 private:
  const FmStep& call;
  const FmPool& pool;
  const int dim, columns;
  const int64_t heads, groups, features, pitch, parts;
  T* sums = nullptr;  // [heads][parts][groups][pitch]

  struct Worker {
    const Step& step;
    T *q, *phi, *joining_k, *joining_u, *fading, *weights;
    Workspace workspace;

    template <class Task>
    explicit Worker(const Task& task) : step(task.step) {}
    bool allocate() {
      return workspace.allocate([&] {
        q = workspace.take<T>(step.groups * step.dim), phi = workspace.take<T>(step.groups * step.features);
        joining_k = workspace.take<T>(step.call.fold * step.features);
        joining_u = workspace.take<T>(step.call.fold * step.joining_pitch());
        fading = workspace.take<T>(step.call.recent_count + 1);
        weights = workspace.take<T>(step.groups * step.weights_pitch());
      });
    }
  };
  // Reads some rows of a head's sum. If these are all rows, this is the whole work.
  struct ReadPart {
    using Worker = Step::Worker;
    const Step& step;

    void run(Worker& worker, int64_t item) const {
      const int64_t i = item / step.parts, part = item % step.parts;
      step.load_queries(worker, i, true);
      step.read_sum(worker, i, step.features * part / step.parts, step.features * (part + 1) / step.parts,
                    step.sums + item * step.groups * step.pitch);
      if (step.parts == 1) step.see_and_store(worker, i);
    }
  };
  // Reads the recent tokens of a head whose sum was read in parts.
  struct SeeRecent {
    using Worker = Step::Worker;
    const Step& step;

    void run(Worker& worker, int64_t i) const {
      step.load_queries(worker, i, false);
      step.see_and_store(worker, i);
    }
  };

  int64_t batch_of(int64_t i) const { return i / call.key_heads; }
  int64_t head_of(int64_t i) const { return i % call.key_heads; }
  bool counts(int64_t i) const { return !call.mask || call.mask[batch_of(i)]; }
  T* recent_k(int64_t i) const { return (T*)call.recent_k + i * call.recent_capacity * dim; }
  T* recent_u(int64_t i) const { return (T*)call.recent_u + i * call.recent_capacity * columns; }
  T* recent_decay(int64_t i) const { return (T*)call.recent_decay + i * call.recent_capacity; }
  bool decays() const { return call.log_decay.data != nullptr; }
  T new_decay(int64_t i) const {
    if (!counts(i)) return 0;
    return (T)bounded_decay(((const T*)call.log_decay.data)[at(call.log_decay, batch_of(i), head_of(i), 0)]);
  }

  void load_vector(const FmTensor& t, int64_t b, int64_t h, T* x) const {
    T rstd;
    load_normalized(call.normalize, {t.data, t.type, at(t, b, h, 0), 0, 1, dim}, (T)call.eps, (T)1, x, dim, &rstd);
  }
  void load_queries(Worker& worker, int64_t i, bool with_features) const {
    for (int64_t g = 0; g < groups; g++) {
      const int64_t head = head_of(i) * groups + g;
      T* q = worker.q + g * dim;
      load_vector(call.q, batch_of(i), head, q);
      multiply_row(q, (T)(call.head_scale ? call.scale * call.head_scale[head] : call.scale), dim);
      if (with_features && features) public_features(q, dim, (int)call.order, worker.phi + g * features);
    }
  }
  int64_t weights_pitch() const { return round_up(call.recent_count + 1, LANES<T>); }
  // Few rows at a time, so that all columns and all query heads find them in the first-level cache; with 16 instead of 64 a
  // step takes a fifth longer.
  static constexpr int64_t ROWS_AT_ONCE = 64;
  void read_sum(Worker& worker, int64_t i, int64_t begin, int64_t end, T* out) const {
    T* total = (T*)call.total + i * features * columns;
    Joining<T> joining = load_joining(worker, i);
    for (int64_t a = begin; a < end; a += ROWS_AT_ONCE) {
      const int count = (int)min(ROWS_AT_ONCE, end - a);
      joining.k = worker.joining_k + a;
      for (int64_t g = 0; g < groups; g++) {
        const T* phi = worker.phi + g * features + a;
        if (joining.tokens == 0 || g != 0)
          read_rows<T, NONE>(total + a * columns, columns, count, phi, joining, out + g * pitch);
        else if (joining.tokens == 4 && decays())
          read_rows<T, FOUR>(total + a * columns, columns, count, phi, joining, out);
        else if (joining.tokens == 4)
          read_rows<T, FOUR_UNFADED>(total + a * columns, columns, count, phi, joining, out);
        else
          read_rows<T, ANY>(total + a * columns, columns, count, phi, joining, out);
      }
    }
  }
  int64_t joining_pitch() const { return round_up(columns, LANES<T>); }
  // The oldest recent tokens, each with its factor at the last of them.
  Joining<T> load_joining(Worker& worker, int64_t i) const {
    const int tokens = features ? (int)call.fold : 0;
    double since = 0;
    for (int n = 0; n < tokens; n++)  // in this order, because it writes beyond its end
      public_features(recent_k(i) + n * dim, dim, (int)call.order, worker.joining_k + n * features);
    for (int n = tokens; n-- > 0;) {
      const T* u = recent_u(i) + n * columns;
      T* to = worker.joining_u + n * joining_pitch();
      const T fade = decays() ? exp_of_negative<T>(since) : 1;
      for (int j = 0; j < columns; j++) to[j] = fade * u[j];
      if (decays()) since += (double)recent_decay(i)[n];
    }
    const T fade = decays() && tokens ? exp_of_negative<T>(since) : 1;
    return {worker.joining_k, worker.joining_u, features, joining_pitch(), tokens, fade};
  }
  void see_and_store(Worker& worker, int64_t i) const {
    T* out = sums + i * parts * groups * pitch;
    for (int64_t part = 1; part < parts; part++)
      for (int64_t e = 0; e < groups * pitch; e++) out[e] += out[part * groups * pitch + e];
    if (call.fold) drop_oldest(i);
    if (decays()) {
      const T fade = load_fading(worker, i);
      for (int64_t g = 0; g < groups; g++) multiply_row(out + g * pitch, fade, columns);
    }
    keep_token(i);
    see_recent(worker, i, out);
    for (int64_t g = 0; g < groups; g++) store_output(i, g, out + g * pitch);
  }
  // Number of recent tokens before the new one.
  int64_t kept() const { return call.recent_count - call.fold; }
  void drop_oldest(int64_t i) const {
    for (int64_t n = 0; call.total_decay && n < call.fold; n++) call.total_decay[i] += (double)recent_decay(i)[n];
    memmove(recent_k(i), recent_k(i) + call.fold * dim, kept() * dim * sizeof(T));
    memmove(recent_u(i), recent_u(i) + call.fold * columns, kept() * columns * sizeof(T));
    if (decays()) memmove(recent_decay(i), recent_decay(i) + call.fold, kept() * sizeof(T));
  }
  // Computes the factor on each recent token at the new one, which comes last; returns the factor on the sum.
  T load_fading(Worker& worker, int64_t i) const {
    const int count = (int)kept();
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
    const int64_t n = kept();
    T *k = recent_k(i) + n * dim, *u = recent_u(i) + n * columns;
    if (decays()) recent_decay(i)[n] = new_decay(i);
    if (!counts(i)) {
      memset(k, 0, dim * sizeof(T));
      memset(u, 0, columns * sizeof(T));
      return;
    }
    load_vector(call.k, batch_of(i), head_of(i), k);
    load_row(call.v.data, call.v.type, at(call.v, batch_of(i), head_of(i), 0), columns - 1, u);
    u[columns - 1] = 1;
  }
  void see_recent(Worker& worker, int64_t i, T* out) const {
    const int64_t count = kept() + 1, own = weights_pitch();
    for (int64_t g = 0; g < groups; g++) {
      T* weights = worker.weights + g * own;
      weigh_keys(worker.q + g * dim, recent_k(i), dim, (int)call.order, count, weights);
      for (int64_t n = 0; decays() && n < count; n++) weights[n] *= worker.fading[n];
    }
    for (int64_t n = 0; n < count; n += ROWS_AT_ONCE)
      for (int64_t g = 0; g < groups; g++)
        read_rows<T, NONE>(recent_u(i) + n * columns, columns, (int)min(ROWS_AT_ONCE, count - n), worker.weights + g * own + n,
                           Joining<T>{}, out + g * pitch);
  }
  void store_output(int64_t i, int64_t g, T* total) const {
    const T denominator = total[columns - 1], inverse = denominator == 0 ? 0 : 1 / denominator;
    for (int j = 0; j < columns - 1; j++) total[j] *= inverse;
    store_row(total, columns - 1, call.o.data, call.o.type, at(call.o, batch_of(i), head_of(i) * groups + g, 0));
  }
};

}  // namespace FM_LEVEL
