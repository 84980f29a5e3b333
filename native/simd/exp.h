// exp of vectors of numbers that are at most 0: exact for 0, within two units in the last place above underflow, 0 below it.
#pragma once
#include "simd/vec.h"

namespace FM_LEVEL {

template <class T>
struct ExpTraits;
template <>
struct ExpTraits<float> {
  using Bits = int32_t;
  static constexpr int MANTISSA = 23, BIAS = 127, TERMS = 7;
  static constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  static constexpr float LOWEST = -87.0f, LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
};
template <>
struct ExpTraits<double> {
  using Bits = int64_t;
  static constexpr int MANTISSA = 52, BIAS = 1023, TERMS = 13;
  static constexpr double ROUND = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double LOWEST = -708.0, LN2_HIGH = 6.93145751953125e-1, LN2_LOW = 1.42860682030941723212e-6;
};

template <class T>
FM_INLINE Vec<T> exp_of_negative(Vec<T> x) {
  using E = ExpTraits<T>;
  typedef typename E::Bits Bits;
  typedef Bits Ints __attribute__((vector_size(FM_VECTOR_BYTES)));
  const Vec<T> lowest = broadcast(E::LOWEST);
  const Ints vanishes = x < lowest;
  x = (Vec<T>)(((Ints)x & ~vanishes) | ((Ints)lowest & vanishes));
  // x = n ln 2 + r, |r| <= ln 2 / 2; n sits in the low bits of the rounded sum
  const Vec<T> shifted = x * (T)1.44269504088896340736 + E::ROUND, n = shifted - E::ROUND;
  const Vec<T> r = (x - n * E::LN2_HIGH) - n * E::LN2_LOW;
  Vec<T> sum = broadcast((T)1);
#pragma GCC unroll 16
  for (int k = E::TERMS; k > 0; k--) sum = sum * r * (T)(1.0 / k) + (T)1;
  const Ints whole = (Ints)shifted - (Ints)broadcast(E::ROUND);
  const Ints power = (whole + E::BIAS) << E::MANTISSA;
  return (Vec<T>)((Ints)(sum * (Vec<T>)power) & ~vanishes);
}

template <class T>
FM_INLINE T exp_of_negative(double x) {
  return exp_of_negative<T>(broadcast((T)x))[0];
}

}  // namespace FM_LEVEL
