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
      : heads(heads), pool(pool), grads(grads), d_scale(d_scale), sizes(heads.call, 1), max_keys(longest()) {
    x_size = max_keys * sizes.dim_pitch, u_size = max_keys * sizes.u_pitch;
  }
  bool run() {
    const int64_t items = heads.count * heads.segments;
    Workspace shared;
    if (!grads || heads.segments == 1) return run_parallel(pool, items, Attend{*this});
    if (!shared.allocate_zeros([&] { partial = shared.take<T>(items * (x_size + u_size)); })) return false;
    return run_parallel(pool, items, Attend{*this}) && run_parallel(pool, heads.count, AddKeyGrads{*this});
  }

 private:
  const Heads& heads;
  const FmPool& pool;
  const bool grads;
  double* d_scale;
  const Sizes<T> sizes;
  const int64_t max_keys;
  int64_t x_size, u_size;  // of the gradients of all keys, and of all values, of a head
  T* partial = nullptr;    // [heads][segments][x_size + u_size]: those from each segment

  int64_t longest() const {
    int64_t keys = 0;
    for (int64_t i = 0; i < heads.count; i += heads.call.key_heads)
      if (heads.is_dense(i)) keys = max(keys, heads.head(i).keys);
    return keys;
  }

  struct Worker {
    const DensePass& pass;
    Form form;
    T *d_x = nullptr, *d_u = nullptr;
    Workspace workspace;

    template <class Task>
    explicit Worker(const Task& task) : pass(task.pass), form(pass.sizes, pass.grads) {}
    bool allocate() {
      return workspace.allocate([&] {
        form.take(workspace, pass.max_keys);
        if (pass.grads) d_x = workspace.take<T>(pass.x_size), d_u = workspace.take<T>(pass.u_size);
      });
    }
  };

  // The outputs, or the gradients, of one segment of queries.
  struct Attend {
    using Worker = DensePass::Worker;
    const DensePass& pass;

    void run(Worker& worker, int64_t item) const {
      const int64_t i = item / pass.heads.segments, part = item % pass.heads.segments;
      if (!pass.heads.is_dense(i)) return;
      const Head head = pass.heads.head(i);
      const Range queries = pass.heads.segment(head.queries, part, Form::QUERIES);
      worker.form.load_keys(head);
      if (!pass.grads) return worker.form.outputs(head, queries.begin, queries.end);
      T *d_x = worker.d_x, *d_u = worker.d_u;
      if (pass.partial) {
        d_x = pass.partial + item * (pass.x_size + pass.u_size), d_u = d_x + pass.x_size;
      } else {
        memset(d_x, 0, pass.x_size * sizeof(T));
        memset(d_u, 0, pass.u_size * sizeof(T));
      }
      worker.form.gradients(head, queries.begin, queries.end, d_x, d_u, pass.d_scale + item * pass.heads.groups);
      if (!pass.partial) worker.form.keys.store_grads(head, d_x, pass.sizes.dim_pitch, d_u, pass.sizes.u_pitch);
    }
  };

  // The gradients of a head's keys and values, added up over segments of queries.
  struct AddKeyGrads {
    using Worker = DensePass::Worker;
    const DensePass& pass;

    void run(Worker& worker, int64_t i) const {
      if (!pass.heads.is_dense(i)) return;
      const Head head = pass.heads.head(i);
      const int64_t size = pass.x_size + pass.u_size;
      T* total = pass.partial + i * pass.heads.segments * size;
      for (int64_t part = 1; part < pass.heads.segments; part++)
        for (int64_t e = 0; e < size; e++) total[e] += total[part * size + e];
      worker.form.load_keys(head);
      worker.form.keys.store_grads(head, total, pass.sizes.dim_pitch, total + pass.x_size, pass.sizes.u_pitch);
    }
  };
};

}  // namespace FM_LEVEL
