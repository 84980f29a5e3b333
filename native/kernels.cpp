// All kernels for one instruction set level. FM_LEVEL names the level and keeps its functions apart from the others'.
#include "run.h"
#include "step.h"

namespace FM_LEVEL {

int forward(const FmCall* call, const FmPool* pool) {
  return call->type == FM_F64 ? Run<double>(*call, *pool).forward() : Run<float>(*call, *pool).forward();
}
int backward(const FmCall* call, const FmPool* pool) {
  return call->type == FM_F64 ? Run<double>(*call, *pool).backward() : Run<float>(*call, *pool).backward();
}
int step(const FmStep* call, const FmPool* pool) {
  return call->type == FM_F64 ? Step<double>(*call, *pool).run() : Step<float>(*call, *pool).run();
}

extern const FmKernels kernels;
const FmKernels kernels = {forward, backward, step};

}  // namespace FM_LEVEL
