// The C ABI between Python and the kernels: one call as plain numbers and pointers of eight bytes each, mirrored by
// backends/native/abi.py.
#pragma once
#include <stdint.h>

enum FmType { FM_F32 = 0, FM_F64 = 1, FM_BF16 = 2, FM_F16 = 3 };
enum FmForm { FM_DENSE = 1, FM_FACTORIZED = 2 };
enum FmStatus { FM_OK = 0, FM_NO_MEMORY = 1 };

// (batch, heads, tokens, channels); strides in elements, that of the channels is 1. No data: the tensor is absent.
typedef struct {
  void* data;
  int64_t batch_stride, head_stride, token_stride, type;
} FmTensor;

// The fields of problem.Problem and of the gradients. States are contiguous, in the public layout and of type `type`.
typedef struct {
  int64_t type;  // of all arithmetic: FM_F32 or FM_F64
  int64_t batch, query_heads, key_heads, queries, keys, head_dim, value_dim;
  int64_t order, is_causal, normalize;
  int64_t sequences;      // -1 unless packed
  int64_t form;           // FmForm of all
  const int64_t* forms;   // or of each sequence, if packed
  double scale, eps;
  FmTensor q, k, v, o, g;  // g may be absent, in the forward pass
  FmTensor d_o, d_g, d_q, d_k, d_v;
  const uint8_t* mask;
  int64_t mask_batch_stride, mask_head_stride, mask_token_stride;
  const int64_t *cu_queries, *cu_keys;
  const double* head_scale;
  double* d_head_scale;
  const void* state_in;
  void* state_out;
  const void* d_state_out;
  void* d_state_in;
} FmCall;

// One token per (batch, head); the state, in the public layout, is updated in place and read in the same pass.
typedef struct {
  int64_t type;
  int64_t batch, query_heads, key_heads, head_dim, value_dim;
  int64_t order, normalize;
  double scale, eps;
  FmTensor q, k, v, o;  // token_stride is not used
  const uint8_t* mask;  // (batch, key_heads), contiguous
  const double* head_scale;
  void* state;
} FmStep;

// torch's own pool: libtorch_cpu exports torch_parallel_for and torch_get_num_threads.
typedef void (*FmRange)(int64_t begin, int64_t end, void* context);
typedef int32_t (*FmParallelFor)(int64_t begin, int64_t end, int64_t grain, FmRange body, void* context);
typedef struct {
  FmParallelFor parallel_for;
  int64_t threads;
} FmPool;

typedef struct {
  int (*forward)(const FmCall*, const FmPool*);
  int (*backward)(const FmCall*, const FmPool*);
  int (*step)(const FmStep*, const FmPool*);
} FmKernels;
