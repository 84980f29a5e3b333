// A whole call: the passes of both forms, forward and backward.
#pragma once
#include <type_traits>

#include "schedule/dense.h"
#include "schedule/factorized.h"

namespace FM_LEVEL {

template <class T>
class Run {
 public:
  Run(const FmCall& call, const FmPool& pool) : call(call), pool(pool), heads(call, pool.threads) {}

  int forward() {
    if (heads.count == 0) return FM_OK;
    return heads.choose_forms<T>(pool) && outputs() ? FM_OK : FM_NO_MEMORY;
  }
  int backward() {
    zero_scale_grads();
    if (heads.count == 0) return FM_OK;
    double* d_scale = (double*)calloc(heads.count * heads.segments * heads.groups, sizeof(double));
    const bool ok = d_scale && heads.choose_forms<T>(pool) && gradients(d_scale) && sum_decay_grads();
    if (ok) add_scale_grads(d_scale);
    free(d_scale);
    return ok ? FM_OK : FM_NO_MEMORY;
  }

 private:
  const FmCall& call;
  const FmPool& pool;
  Heads heads;

  bool outputs() const {
    return with_dense(false, nullptr,
                      [&](auto* dense) { return factorized(Pass::outputs, call.state_in, call.state_out, nullptr, dense); });
  }
  bool gradients(double* d_scale) const {
    return factorized(Pass::query_grads, call.state_in, nullptr, d_scale, (NoPass*)nullptr) &&
           with_dense(true, d_scale, [&](auto* dense) {
             return factorized(Pass::key_grads, call.d_state_out, call.d_state_in, d_scale, dense);
           });
  }
  struct NoPass {};

  // Calls f(the pass of the dense form).
  template <class F>
  bool with_dense(bool grads, double* d_scale, const F& f) const {
    if (!heads.any(true)) return f((NoPass*)nullptr);
#if defined(FM_BF16_PAIRS)
    if constexpr (sizeof(T) == sizeof(float)) {
      if (Bf16Products::serve(call)) {
        DensePass<DenseForm<Bf16Products>> pass(heads, pool, grads, d_scale);
        return f(&pass);
      }
    }
#endif
    DensePass<DenseForm<Products<T>>> pass(heads, pool, grads, d_scale);
    return f(&pass);
  }
  // Runs the factorized heads, and behind them those of the pass `dense` unless it is null. Two walks if decays fade both ways.
  template <class Dense>
  bool factorized(Pass pass, const void* from, void* to, double* d_scale, Dense* dense) const {
    if (!heads.any(false)) return run(dense);
    if (!DecayChunk<T>::both_ways(call)) return run(FactorizedPass<T>(heads, pool, pass, from, to, d_scale), dense);
    T* kept = nullptr;
    Workspace shared;
    const FactorizedPass<T> sizes(heads, pool, pass, from, to, d_scale, Walk::first);
    if (!shared.allocate([&] { kept = shared.take<T>(sizes.kept_size()); })) return false;
    return FactorizedPass<T>(heads, pool, pass, from, to, d_scale, Walk::first, kept).run() &&
           run(FactorizedPass<T>(heads, pool, pass, from, to, d_scale, Walk::second, kept), dense);
  }
  template <class Dense>
  bool run(FactorizedPass<T>&& factorized, Dense* dense) const {
    if constexpr (std::is_same_v<Dense, NoPass>) {
      return factorized.run();
    } else {
      if (!dense || heads.segments > 1) return factorized.run() && run(dense);
      const auto first = factorized.task();
      const auto second = dense->task();
      const Together<decltype(first), decltype(second)> both{first, factorized.items(), second};
      return run_parallel(pool, factorized.items() + dense->items(), both);
    }
  }
  template <class Dense>
  static bool run(Dense* dense) {
    if constexpr (std::is_same_v<Dense, NoPass>)
      return true;
    else
      return !dense || dense->run();
  }
  // Turns the gradients of sums of decays into those of decays. A decay is in the sums of its token and of the tokens behind.
  bool sum_decay_grads() const {
    const bool alone = heads.count * call.keys < 1 << 14;  // as in choose_forms
    return !call.d_decay.data || run_parallel(alone ? FmPool{nullptr, 1} : pool, heads.count, SumDecayGrads{*this});
  }
  struct SumDecayGrads {
    struct Worker {
      explicit Worker(const SumDecayGrads&) {}
      bool allocate() { return true; }
    };
    const Run& run_of;

    void run(Worker&, int64_t i) const {
      const FmCall& c = run_of.call;
      const Head h = run_of.heads.head(i);
      T* grads = (T*)c.d_decay.data + at(c.d_decay, h.batch, h.key_head, h.key_start);
      const T* decays = (const T*)c.log_decay.data + at(c.log_decay, h.batch, h.key_head, h.key_start);
      double total = 0;
      for (int64_t n = h.keys; n-- > 0;) {
        total += grads[n * c.d_decay.token_stride];
        // a stronger decay was bounded
        grads[n * c.d_decay.token_stride] = (double)decays[n * c.log_decay.token_stride] < STRONGEST<T> ? 0 : (T)total;
      }
    }
  };
  void zero_scale_grads() {
    for (int64_t h = 0; call.d_head_scale && h < call.query_heads; h++) call.d_head_scale[h] = 0;
  }
  void add_scale_grads(const double* parts) {
    if (!call.d_head_scale) return;
    const int64_t groups = heads.groups, per_head = heads.segments * groups;
    for (int64_t i = 0; i < heads.count; i++)
      for (int64_t p = 0; p < per_head; p++)
        call.d_head_scale[i % call.key_heads * groups + p % groups] += parts[i * per_head + p];
  }
};

}  // namespace FM_LEVEL
