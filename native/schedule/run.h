// A whole call: the passes of both forms, forward and backward.
#pragma once
#include "schedule/dense.h"
#include "schedule/factorized.h"

namespace FM_LEVEL {

template <class T>
class Run {
 public:
  Run(const FmCall& call, const FmPool& pool) : call(call), pool(pool), heads(call, pool.threads) {}

  int forward() {
    if (heads.count == 0) return FM_OK;
    return dense(false, nullptr) && factorized(Pass::outputs, call.state_in, call.state_out, nullptr) ? FM_OK : FM_NO_MEMORY;
  }
  int backward() {
    zero_scale_grads();
    if (heads.count == 0) return FM_OK;
    double* d_scale = (double*)calloc(heads.count * heads.segments * heads.groups, sizeof(double));
    const bool ok = d_scale && dense(true, d_scale) && factorized(Pass::query_grads, call.state_in, nullptr, d_scale) &&
                    factorized(Pass::key_grads, call.d_state_out, call.d_state_in, d_scale);
    if (ok) add_scale_grads(d_scale);
    free(d_scale);
    return ok ? FM_OK : FM_NO_MEMORY;
  }

 private:
  const FmCall& call;
  const FmPool& pool;
  const Heads heads;

  bool dense(bool grads, double* d_scale) {
    if (!heads.any(true)) return true;
#if defined(FM_BF16_PAIRS)
    if (sizeof(T) == sizeof(float) && Bf16Products::serve(call))
      return DensePass<DenseForm<Bf16Products>>(heads, pool, grads, d_scale).run();
#endif
    return DensePass<DenseForm<Products<T>>>(heads, pool, grads, d_scale).run();
  }
  bool factorized(Pass pass, const void* from, void* to, double* d_scale) {
    return !heads.any(false) || FactorizedPass<T>(heads, pool, pass, from, to, d_scale).run();
  }
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
