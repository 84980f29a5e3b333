// The exported functions: describes the boundary, and hands calls to the kernels of a level that this processor runs.
#include "api.h"
#include "levels.h"
#include "levels_built.h"  // made by CMake: FM_LEVELS_BUILT(X) is X(name) for each level in this library, the best first
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define FM_EXPORT extern "C" __attribute__((visibility("default")))

#define FM_DECLARE(level)           \
  namespace level_##level {         \
    extern const FmKernels kernels; \
  }
FM_LEVELS_BUILT(FM_DECLARE)

namespace {
struct BuiltLevel {
  FmLevel level;
  const FmKernels* kernels;
};
}  // namespace

static const BuiltLevel* levels(int64_t* count) {
#define FM_ROW(level) {describe_##level(), &level_##level::kernels},
  static const BuiltLevel built[] = {FM_LEVELS_BUILT(FM_ROW)};
  *count = sizeof built / sizeof built[0];
  return built;
}

// Null where there is no such level, or the processor would meet instructions that it does not have.
static const FmKernels* kernels_of(int64_t level) {
  int64_t count;
  const BuiltLevel* built = levels(&count);
  return level >= 0 && level < count && built[level].level.runs ? built[level].kernels : nullptr;
}

FM_EXPORT int64_t fm_level_count() {
  int64_t count;
  levels(&count);
  return count;
}
FM_EXPORT const char* fm_level_name(int64_t i) {
  int64_t count;
  return levels(&count)[i].level.name;
}
FM_EXPORT int fm_level_runs(int64_t i) { return kernels_of(i) != nullptr; }

FM_EXPORT int fm_forward(int64_t level, const FmCall* call, FmParallelFor parallel_for, int64_t threads) {
  const FmKernels* kernels = kernels_of(level);
  const FmPool pool = {parallel_for, threads};
  return kernels ? kernels->forward(call, &pool) : FM_BAD_LEVEL;
}
FM_EXPORT int fm_backward(int64_t level, const FmCall* call, FmParallelFor parallel_for, int64_t threads) {
  const FmKernels* kernels = kernels_of(level);
  const FmPool pool = {parallel_for, threads};
  return kernels ? kernels->backward(call, &pool) : FM_BAD_LEVEL;
}
FM_EXPORT int fm_step(int64_t level, const FmStep* call, FmParallelFor parallel_for, int64_t threads) {
  const FmKernels* kernels = kernels_of(level);
  const FmPool pool = {parallel_for, threads};
  return kernels ? kernels->step(call, &pool) : FM_BAD_LEVEL;
}

// api.h as text: one line per structure or enumeration, "name: field kind, field kind, ", in order.
#define FM_CONSTANT_TEXT(name, value) #name " " #value ", "
#define FM_INT_TEXT(name) #name " int, "
#define FM_REAL_TEXT(name) #name " real, "
#define FM_POINTER_TEXT(type, name) #name " pointer, "
#define FM_TENSOR_TEXT(name) #name " tensor, "
#define FM_FIELD_TEXTS FM_INT_TEXT, FM_REAL_TEXT, FM_POINTER_TEXT, FM_TENSOR_TEXT
#define FM_EXPAND(fields, ...) fields(__VA_ARGS__)
FM_EXPORT const char* fm_layout() {
  return "FmType: " FM_TYPES(FM_CONSTANT_TEXT) "\n"
         "FmNormalize: " FM_NORMALIZATIONS(FM_CONSTANT_TEXT) "\n"
         "FmDropout: " FM_DROPOUTS(FM_CONSTANT_TEXT) "\n"
         "FmForm: " FM_FORMS(FM_CONSTANT_TEXT) "\n"
         "FmStatus: " FM_STATUSES(FM_CONSTANT_TEXT) "\n"
         "FmTensor: " FM_EXPAND(FM_TENSOR_FIELDS, FM_FIELD_TEXTS) "\n"
         "FmCall: " FM_EXPAND(FM_CALL_FIELDS, FM_FIELD_TEXTS) "\n"
         "FmStep: " FM_EXPAND(FM_STEP_FIELDS, FM_FIELD_TEXTS) "\n";
}

// Asks for huge pages for a large buffer that is about to be filled, as NumPy does for its arrays: the page faults of a
// fresh output can take longer than an attention of order 1.
FM_EXPORT void fm_huge_pages(void* data, int64_t bytes) {
#if defined(__linux__)
  const uintptr_t page = 4096, begin = ((uintptr_t)data + page - 1) / page * page,
                  end = ((uintptr_t)data + bytes) / page * page;
  if (end > begin) madvise((void*)begin, end - begin, MADV_HUGEPAGE);
#else
  (void)data, (void)bytes;
#endif
}
