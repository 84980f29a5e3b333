// Refuses a call that the kernels have no code for, so that no function below meets an unknown value.
#pragma once
#include "api.h"
#include "forms/dropout.h"
#include "tiles/convert.h"

namespace FM_LEVEL {

constexpr int64_t MAX_CHUNK = 4096;

template <size_t N>
int check_tensors(const FmTensor* const (&tensors)[N]) {
  for (const FmTensor* t : tensors)
    if (t->data && size_of(t->type) == 0) return FM_BAD_TYPE;
  return FM_OK;
}
FM_INLINE int check_numbers(int64_t type, int64_t head_dim, int64_t value_dim) {
  if (type != FM_F32 && type != FM_F64) return FM_BAD_TYPE;
  if (head_dim < 1 || head_dim > FM_MAX_DIM || value_dim < 1 || value_dim > FM_MAX_DIM) return FM_BAD_DIM;
  return FM_OK;
}
FM_INLINE int check_form(int64_t form, int64_t order) {
  if (form != FM_DENSE && form != FM_FACTORIZED && form != FM_BY_REACH) return FM_BAD_FORM;
  return order >= 1 && order <= (form == FM_DENSE ? 4 : 2) ? FM_OK : FM_BAD_ORDER;
}

inline int check_dropout(const FmCall& c) {
  if (c.dropout < FM_NO_DROPOUT || c.dropout > FM_QUADRATIC || c.dropped < 0 || c.dropped >= 1 << 16) return FM_BAD_DROPOUT;
  if (c.dropout != FM_NO_DROPOUT && !c.dropout_seed) return FM_BAD_DROPOUT;
  if (!drops_features(c)) return FM_OK;
  for (int64_t i = 0; i < (c.forms ? c.sequences : 1); i++)
    if ((c.forms ? c.forms[i] : c.form) != FM_FACTORIZED) return FM_BAD_DROPOUT;
  return FM_OK;
}

inline int check(const FmCall& c) {
  if (const int status = check_numbers(c.type, c.head_dim, c.value_dim)) return status;
  if (const int status = check_tensors({&c.q, &c.k, &c.v, &c.o, &c.g, &c.d_o, &c.d_g, &c.d_q, &c.d_k, &c.d_v})) return status;
  if (c.log_decay.data && (c.log_decay.type != c.type || (c.queries != 0 && c.queries != c.keys))) return FM_BAD_DECAY;
  if (c.d_decay.data && c.d_decay.type != c.type) return FM_BAD_DECAY;
  if (c.g.data && c.g.type != c.type) return FM_BAD_TYPE;
  if (c.normalize < FM_AS_IT_IS || c.normalize > FM_RMS) return FM_BAD_NORMALIZE;
  if (const int status = check_dropout(c)) return status;
  if (c.chunk < 1 || c.chunk > MAX_CHUNK || c.chunk % 32 != 0) return FM_BAD_CHUNK;
  for (int64_t i = 0; i < (c.forms ? c.sequences : 1); i++) {
    const int64_t form = c.forms ? c.forms[i] : c.form;
    if (const int status = check_form(form, c.order)) return status;
    // a state is the factorized form's
    const bool decays = c.log_decay.data || c.batch * c.key_heads * c.keys == 0;  // an empty tensor has no address
    if (form == FM_BY_REACH && (!decays || c.state_in || c.state_out || c.d_state_out)) return FM_BAD_FORM;
  }
  return FM_OK;
}
inline int check(const FmStep& c) {
  if (const int status = check_numbers(c.type, c.head_dim, c.value_dim)) return status;
  if (const int status = check_tensors({&c.q, &c.k, &c.v, &c.o})) return status;
  if (c.normalize < FM_AS_IT_IS || c.normalize > FM_RMS) return FM_BAD_NORMALIZE;
  if (c.recent_count < 0 || c.recent_count - c.fold >= c.recent_capacity || !c.recent_k || !c.recent_u) return FM_BAD_CHUNK;
  if (c.fold < 0 || c.fold > c.recent_count || (c.fold && !c.total)) return FM_BAD_CHUNK;
  if (!c.log_decay.data != !c.recent_decay || (c.total_decay && !c.recent_decay) ||
      (c.log_decay.data && c.log_decay.type != c.type))
    return FM_BAD_DECAY;
  return check_form(c.total ? FM_FACTORIZED : FM_DENSE, c.order);
}

// Checks that each of `count` decays is finite and at most 0. The decays are read here anyway; in Python this check takes
// longer than a short attention.
template <class T>
bool decays_are_valid(const T* x, int64_t count, int64_t stride) {
  constexpr T LOWEST = -__builtin_inf();
  bool valid = true;
  if (stride == 1)
    for (int64_t n = 0; n < count; n++) valid &= x[n] <= 0 && x[n] > LOWEST;
  else
    for (int64_t n = 0; n < count; n++) valid &= x[n * stride] <= 0 && x[n * stride] > LOWEST;
  return valid;
}
template <class T>
int check_decays(const FmCall& c) {
  const FmTensor& t = c.log_decay;
  if (!t.data) return FM_OK;
  for (int64_t b = 0; b < c.batch; b++)
    for (int64_t h = 0; h < c.key_heads; h++)
      if (!decays_are_valid((const T*)t.data + b * t.batch_stride + h * t.head_stride, c.keys, t.token_stride))
        return FM_BAD_DECAY_VALUE;
  return FM_OK;
}
template <class T>
int check_decays(const FmStep& c) {
  const FmTensor& t = c.log_decay;
  if (!t.data) return FM_OK;
  for (int64_t b = 0; b < c.batch; b++)
    if ((!c.mask || c.mask[b]) && !decays_are_valid((const T*)t.data + b * t.batch_stride, c.key_heads, t.head_stride))
      return FM_BAD_DECAY_VALUE;
  return FM_OK;
}

}  // namespace FM_LEVEL
