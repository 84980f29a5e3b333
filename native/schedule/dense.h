// The dense form over all heads that take it: segments of queries, each against all keys of its head.
#pragma once
#include "forms/dense.h"
#include "schedule/heads.h"
#include "schedule/threads.h"

namespace FM_LEVEL {

template <class Form>
class DensePass {
  using T = typename Form::T;

 public:
  // d_scale is [heads][segments][groups], for gradients only.
  DensePass(const Heads& heads, const FmPool& pool, bool grads, double* d_scale)
      : heads(heads),
        pool(pool),
        grads(grads),
        d_scale(d_scale),
        sizes(heads.call, 1),
        decays(DecayChunk<T>::used(heads.call)),
        max_keys(longest()) {
    x_size = max_keys * sizes.dim_pitch, u_size = max_keys * sizes.u_pitch;
    size = x_size + u_size + (decays ? max_keys : 0);
  }
  // The pass as a task whose items are independent: those of whole heads.
  struct Attend;
  int64_t items() const { return heads.dense_count * heads.segments; }
  Attend task() const { return {*this}; }
  bool run() {
    const int64_t items = this->items();
    Workspace shared;
    if (!grads || heads.segments == 1) return run_parallel(pool, items, Attend{*this});
    if (!shared.allocate_zeros([&] { partial = shared.take<T>(items * size); })) return false;
    return run_parallel(pool, items, Attend{*this}) && run_parallel(pool, heads.dense_count, AddKeyGrads{*this});
  }

 private:
  const Heads& heads;
  const FmPool& pool;
  const bool grads;
  double* d_scale;
  const Sizes<T> sizes;
  const bool decays;
  const int64_t max_keys;
  int64_t x_size, u_size, size;  // of a head: gradients of all keys, of all values, and of both with the sums of decays
  T* partial = nullptr;          // [heads][segments][size]: the gradients from each segment

  int64_t longest() const {
    int64_t keys = 0;
    for (int64_t n = 0; n < heads.dense_count; n++) keys = max(keys, heads.head(heads.by_cost[n]).keys);
    return keys;
  }

  struct Worker {
    const DensePass& pass;
    Form form;
    T* grads = nullptr;
    Workspace workspace;

    template <class Task>
    explicit Worker(const Task& task) : pass(task.pass), form(pass.sizes, pass.grads) {}
    bool allocate() {
      return workspace.allocate([&] {
        form.take(workspace, pass.max_keys);
        if (pass.grads) grads = workspace.take<T>(pass.size);
      });
    }
  };

 public:
  // The outputs, or the gradients, of one segment of queries.
  struct Attend {
    using Worker = DensePass::Worker;
    const DensePass& pass;

    void run(Worker& worker, int64_t item) const {
      const int64_t i = pass.heads.by_cost[item / pass.heads.segments], part = item % pass.heads.segments;
      const Head head = pass.heads.head(i);
      const Range queries = pass.heads.segment(head.queries, part, Form::QUERIES);
      worker.form.load_keys(head);
      if (!pass.grads) return worker.form.outputs(head, queries.begin, queries.end);
      T* grads = pass.partial ? pass.partial + item * pass.size : worker.grads;
      if (!pass.partial) memset(grads, 0, pass.size * sizeof(T));
      worker.form.gradients(head, queries.begin, queries.end, grads, grads + pass.x_size, pass.sums_of(grads),
                            pass.d_scale + (i * pass.heads.segments + part) * pass.heads.groups);
      if (!pass.partial) pass.store(worker, head, grads);
    }
  };

 private:
  T* sums_of(T* grads) const { return decays ? grads + x_size + u_size : nullptr; }
  void store(Worker& worker, const Head& head, T* grads) const {
    worker.form.keys.store_grads(head, grads, sizes.dim_pitch, grads + x_size, sizes.u_pitch, sums_of(grads));
  }

  // The gradients of a head's keys and values, added up over segments of queries.
  struct AddKeyGrads {
    using Worker = DensePass::Worker;
    const DensePass& pass;

    void run(Worker& worker, int64_t n) const {
      const Head head = pass.heads.head(pass.heads.by_cost[n]);
      T* total = pass.partial + n * pass.heads.segments * pass.size;
      for (int64_t part = 1; part < pass.heads.segments; part++)
        for (int64_t e = 0; e < pass.size; e++) total[e] += total[part * pass.size + e];
      worker.form.load_keys(head);
      pass.store(worker, head, total);
    }
  };
};

}  // namespace FM_LEVEL
