// All kernels for one instruction set level. FM_LEVEL names the level and the namespace of its functions.
#include "schedule/check.h"
#include "schedule/run.h"
#include "schedule/step.h"

namespace FM_LEVEL {

// f(T{}) for the type of a call's arithmetic, which check() has seen to be one of the two.
template <class Call, class F>
int with_type(const Call& call, const F& f) {
  if (const int status = check(call)) return status;
  return call.type == FM_F64 ? f(double{}) : f(float{});
}

int forward(const FmCall* call, const FmPool* pool) {
  return with_type(*call, [&](auto zero) {
    using T = decltype(zero);
    const int status = check_decays<T>(*call);
    return status ? status : Run<T>(*call, *pool).forward();
  });
}
int backward(const FmCall* call, const FmPool* pool) {
  return with_type(*call, [&](auto zero) { return Run<decltype(zero)>(*call, *pool).backward(); });
}
int step(const FmStep* call, const FmPool* pool) {
  return with_type(*call, [&](auto zero) { return Step<decltype(zero)>(*call, *pool).run(); });
}

extern const FmKernels kernels;
const FmKernels kernels = {forward, backward, step};

}  // namespace FM_LEVEL
