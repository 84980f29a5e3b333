// The C ABI between Python and the kernels: a call as integers, doubles and pointers of eight bytes each.
//
// Every structure and enumeration is one list. It makes the C declaration and, in dispatch.cpp, the text that
// backends/native/abi.py compares with its own list when it loads the library.
#pragma once
#include <stdint.h>

#define FM_TYPES(X) X(F32, 0) X(F64, 1) X(BF16, 2) X(F16, 3)
#define FM_NORMALIZATIONS(X) X(AS_IT_IS, 0) X(STANDARDIZE, 1) X(RMS, 2)
#define FM_DROPOUTS(X) X(NO_DROPOUT, 0) X(STANDARD, 1) X(TOKENS, 2) X(QUADRATIC, 3)
// BY_REACH: with decays, the form that is cheaper for each head, by the number of keys that its queries can still see.
#define FM_FORMS(X) X(DENSE, 1) X(FACTORIZED, 2) X(BY_REACH, 3)
// BAD_x: the kernels have no code for the value of x; nothing was computed.
#define FM_STATUSES(X)   \
  X(OK, 0)               \
  X(NO_MEMORY, 1)        \
  X(BAD_LEVEL, 2)        \
  X(BAD_TYPE, 3)         \
  X(BAD_ORDER, 4)        \
  X(BAD_FORM, 5)         \
  X(BAD_CHUNK, 6)        \
  X(BAD_DIM, 7)          \
  X(BAD_DECAY, 8)        \
  X(BAD_NORMALIZE, 9)    \
  X(BAD_DECAY_VALUE, 10) \
  X(BAD_DROPOUT, 11)

#define FM_ENUMERATOR(name, value) FM_##name = value,
enum FmType { FM_TYPES(FM_ENUMERATOR) };
enum FmNormalize { FM_NORMALIZATIONS(FM_ENUMERATOR) };
enum FmDropout { FM_DROPOUTS(FM_ENUMERATOR) };
enum FmForm { FM_FORMS(FM_ENUMERATOR) };
enum FmStatus { FM_STATUSES(FM_ENUMERATOR) };

#define FM_MAX_DIM 256  // channels per head

// (batch, heads, tokens, channels); strides in elements, that of the channels is 1. No data: the tensor is absent.
#define FM_TENSOR_FIELDS(INT, REAL, POINTER, TENSOR) \
  POINTER(void, data)                                \
  INT(batch_stride)                                  \
  INT(head_stride)                                   \
  INT(token_stride)                                  \
  INT(type)

// The fields of a call and of its gradients. States are contiguous, in the public layout and of type `type`.
#define FM_CALL_FIELDS(INT, REAL, POINTER, TENSOR)                                                                           \
  INT(type) /* of all arithmetic: FM_F32 or FM_F64 */                                                                        \
  INT(batch)                                                                                                                 \
  INT(query_heads)                                                                                                           \
  INT(key_heads)                                                                                                             \
  INT(queries)                                                                                                               \
  INT(keys)                                                                                                                  \
  INT(head_dim)                                                                                                              \
  INT(value_dim)                                                                                                             \
  INT(order)                                                                                                                 \
  INT(is_causal)                                                                                                             \
  INT(normalize)                /* FmNormalize */                                                                            \
  INT(chunk)                    /* tokens per step of the factorized form, a multiple of 32 */                               \
  INT(sequences)                /* -1 unless packed */                                                                       \
  INT(form)                     /* FmForm of all, */                                                                         \
  POINTER(const int64_t, forms) /* or of each sequence, if packed */                                                         \
  REAL(scale)                                                                                                                \
  REAL(eps)                                                                                                                  \
  TENSOR(q)                                                                                                                  \
  TENSOR(k)                                                                                                                  \
  TENSOR(v)                                                                                                                  \
  TENSOR(o)                                                                                                                  \
  TENSOR(g)         /* of type `type`; may be absent in the forward pass */                                                  \
  TENSOR(log_decay) /* (batch, key_heads, tokens), of type `type`, or absent; self attention: weights fade by exp(c_i - c_j) \
                       if causal, else by exp(-|c_i - c_j|), for c the sums of log_decay */                                  \
  TENSOR(d_o)                                                                                                                \
  TENSOR(d_g)                                                                                                                \
  TENSOR(d_q)                                                                                                                \
  TENSOR(d_k)                                                                                                                \
  TENSOR(d_v)                                                                                                                \
  TENSOR(d_decay) /* of type `type` */                                                                                       \
  POINTER(const uint8_t, mask)                                                                                               \
  INT(mask_batch_stride)                                                                                                     \
  INT(mask_head_stride)                                                                                                      \
  INT(mask_token_stride)                                                                                                     \
  POINTER(const int64_t, cu_queries)                                                                                         \
  POINTER(const int64_t, cu_keys)                                                                                            \
  POINTER(const double, head_scale)                                                                                          \
  POINTER(double, d_head_scale)                                                                                              \
  POINTER(const void, state_in)                                                                                              \
  POINTER(void, state_out)                                                                                                   \
  POINTER(const void, d_state_out)                                                                                           \
  POINTER(void, d_state_in)                                                                                                  \
  INT(dropout) /* FmDropout; what drops features needs the factorized form */                                                \
  INT(dropped) /* entries of 2^16 */                                                                                         \
  POINTER(const int64_t, dropout_seed)                                                                                       \
  INT(state_is_total) /* an unmasked forward pass keeps the sum over all keys for the backward pass, in a layout of its own */

// One token per (batch, head) of decoding. Sums and recent tokens are contiguous and of type `type`.
#define FM_STEP_FIELDS(INT, REAL, POINTER, TENSOR)                                                     \
  INT(type)                                                                                            \
  INT(batch)                                                                                           \
  INT(query_heads)                                                                                     \
  INT(key_heads)                                                                                       \
  INT(head_dim)                                                                                        \
  INT(value_dim)                                                                                       \
  INT(order)                                                                                           \
  INT(normalize)                                                                                       \
  INT(recent_count)    /* recent tokens before this one */                                             \
  INT(recent_capacity) /* and how many there is room for */                                            \
  INT(fold)            /* how many of them, the oldest, join the sum first */                          \
  REAL(scale)                                                                                          \
  REAL(eps)                                                                                            \
  TENSOR(q) /* token_stride is not used */                                                             \
  TENSOR(k)                                                                                            \
  TENSOR(v)                                                                                            \
  TENSOR(o)                                                                                            \
  POINTER(const uint8_t, mask) /* (batch,): whether the new key counts */                              \
  POINTER(const double, head_scale)                                                                    \
  POINTER(void, total)         /* the sum over older keys, public layout, or absent */                 \
  POINTER(void, recent_k)      /* (batch, key_heads, recent_capacity, head_dim) */                     \
  POINTER(void, recent_u)      /* (..., value_dim + 1) */                                              \
  POINTER(void, recent_decay)  /* (batch, key_heads, recent_capacity), or absent */                    \
  POINTER(double, total_decay) /* (batch, key_heads): what the sum has decayed by in all, or absent */ \
  TENSOR(log_decay)            /* (batch, key_heads), of the new token, of type `type`, or absent */

#define FM_INT_FIELD(name) int64_t name;
#define FM_REAL_FIELD(name) double name;
#define FM_POINTER_FIELD(type, name) type* name;
#define FM_TENSOR_FIELD(name) FmTensor name;
typedef struct {
  FM_TENSOR_FIELDS(FM_INT_FIELD, FM_REAL_FIELD, FM_POINTER_FIELD, FM_TENSOR_FIELD)
} FmTensor;
typedef struct {
  FM_CALL_FIELDS(FM_INT_FIELD, FM_REAL_FIELD, FM_POINTER_FIELD, FM_TENSOR_FIELD)
} FmCall;
typedef struct {
  FM_STEP_FIELDS(FM_INT_FIELD, FM_REAL_FIELD, FM_POINTER_FIELD, FM_TENSOR_FIELD)
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
