// Pairs of bf16 numbers: two neighbouring terms of a sum in 32 bits, which one instruction multiplies and adds up in fp32.
#pragma once
#include "simd/vec.h"

namespace FM_LEVEL {
typedef uint32_t Pair;  // the first term in the lower half

// The number of terms of a sum that an element holds.
template <class E>
constexpr int TERMS = 1;
template <>
constexpr int TERMS<Pair> = 2;
}  // namespace FM_LEVEL

#if defined(__AVX512BF16__)
#define FM_BF16_PAIRS 1
#include <immintrin.h>

namespace FM_LEVEL {

// 32 numbers rounded, as 16 pairs of neighbours.
FM_INLINE Vec<Pair> narrow(Vec<float> low, Vec<float> high) {
  return (Vec<Pair>)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}
// Pairs of one number of `a` and the one in the same place of `b`, both narrow: the first 16, or the last.
template <bool Last>
FM_INLINE Vec<Pair> interleave(Vec<Pair> a, Vec<Pair> b) {
  typedef uint16_t Words __attribute__((vector_size(64)));
  constexpr uint16_t f = Last ? 16 : 0;
  const Words from = {f,      f + 32, f + 1,  f + 33, f + 2,  f + 34, f + 3,  f + 35, f + 4,  f + 36, f + 5,
                      f + 37, f + 6,  f + 38, f + 7,  f + 39, f + 8,  f + 40, f + 9,  f + 41, f + 10, f + 42,
                      f + 11, f + 43, f + 12, f + 44, f + 13, f + 45, f + 14, f + 46, f + 15, f + 47};
  return (Vec<Pair>)_mm512_permutex2var_epi16((__m512i)a, (__m512i)from, (__m512i)b);
}

// acc[r] += sum over k of a[k * a_step + r * a_row] . b[k * b_step ..]
template <class T, int R, int First = 0>
FM_INLINE void multiply(Vec<T> (&acc)[R][2], const Pair* a, ptrdiff_t a_step, ptrdiff_t a_row, const Pair* b, ptrdiff_t b_step,
                        int64_t steps) {
  for (int64_t k = 0; k < steps; k++, a += a_step, b += b_step) {
    const __m512bh b0 = (__m512bh)(First == 0 ? load(b) : Vec<Pair>{}), b1 = (__m512bh)load(b + LANES<Pair>);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const __m512bh x = (__m512bh)broadcast(a[r * a_row]);
      if constexpr (First == 0) acc[r][0] = (Vec<float>)_mm512_dpbf16_ps((__m512)acc[r][0], x, b0);
      acc[r][1] = (Vec<float>)_mm512_dpbf16_ps((__m512)acc[r][1], x, b1);
    }
  }
}

// Rows of n channels to pairs of channels, [count][pitch]; of an odd number the last is paired with zero. Rows may be read up
// to the next multiple of 32 channels.
inline void pair_channels(const float* rows, int64_t from_pitch, int64_t count, int n, Pair* out, int64_t pitch) {
  constexpr int L = LANES<float>;
  for (int64_t r = 0; r < count; r++, rows += from_pitch, out += pitch)
    for (int i = 0; i < n; i += 2 * L) {
      Vec<Pair> pairs = narrow(load(rows + i), load(rows + i + L));
      const int left = (n - i + 1) / 2;
      if (n % 2 && left <= L) pairs[left - 1] &= 0xffff;
      if (left >= L)
        store(out + i / 2, pairs);
      else
        memcpy(out + i / 2, &pairs, left * sizeof(Pair));
    }
}
// Rows of n numbers to pairs of rows, [(count + 1) / 2][pitch]; an odd row is paired with zeros. Rows may be read, and pairs
// written, up to the next multiple of 32.
inline void pair_rows(const float* rows, int64_t from_pitch, int64_t count, int n, Pair* out, int64_t pitch) {
  constexpr int L = LANES<float>;
  for (int64_t r = 0; r < count; r += 2, rows += 2 * from_pitch, out += pitch)
    for (int i = 0; i < n; i += 2 * L) {
      const float* next = rows + from_pitch + i;
      const Vec<Pair> one = narrow(load(rows + i), load(rows + i + L));
      const Vec<Pair> other = r + 1 < count ? narrow(load(next), load(next + L)) : Vec<Pair>{};
      store(out + i, interleave<false>(one, other));
      store(out + i + L, interleave<true>(one, other));
    }
}

}  // namespace FM_LEVEL
#endif
