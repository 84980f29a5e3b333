// The reach of a head: the exponent of a decay below which no weight can change a result in the dense form.
#pragma once
#include <math.h>

#include "forms/head.h"
#include "simd/exp.h"

namespace FM_LEVEL {

// Below ExpTraits<T>::LOWEST a weight is exactly 0. Often a weight cannot matter much earlier (docs/design.md has the proof).
// For an even order f is at least 1/4, so the term of a token with itself, which no decay fades, keeps a denominator above
// that. If values and output gradients of the tokens are at most `ratio` apart, then all weights below
//
//     e^lowest = 2^-(BITS + 5) / (keys * f_max * ratio),
//
// where `keys` are those of DecayChunk::keys_in_reach, together add less than 2^-(BITS + 2) of what that term may be to any
// sum: less than its rounding. A hidden key may have no such term, without a normalization there is no f_max, and values may be
// infinite or 0: then only weights of 0 are left out.
template <class T>
class Reach {
 public:
  Reach(const Head& h, double keys) : h(h), c(*h.call), keys(keys) {}

  // The exponent, if values and output gradients are `ratio` apart: at most what it is if they are 1 apart.
  double lowest(double ratio = 1) const {
    constexpr double ZERO = ExpTraits<T>::LOWEST, BITS = sizeof(T) == sizeof(float) ? 24 : 53;
    if (c.order % 2 != 0 || c.mask || c.d_g.data || c.normalize == FM_AS_IT_IS || h.queries != h.keys) return ZERO;
    if (!(ratio < 1e30)) return ZERO;
    return fmax(ZERO, -log(ldexp(keys * similarity_bound() * ratio, (int)BITS + 5)));
  }
  // Reads all values and output gradients.
  double ratio() const { return fmax(values(), output_grads()); }

 private:
  const Head& h;
  const FmCall& c;
  const double keys;

  // f(|s|) at the largest s there is: normalized tokens have a norm of sqrt(D).
  double similarity_bound() const {
    double factor = 0;
    for (int64_t g = 0; g < h.groups; g++)
      factor = fmax(factor, fabs(c.head_scale ? c.head_scale[h.key_head * h.groups + g] : 1.0));
    const double s = fabs(c.scale) * factor * (double)c.head_dim;
    double f = 1;
    for (int64_t l = c.order; l > 0; l--) f = 1 + s / (double)l * f;
    return f;
  }
  // The largest over the smallest of the numbers that `size(token)` returns.
  template <class F>
  static double ratio_of(int64_t tokens, const F& size) {
    double largest = 0, smallest = INFINITY;
    for (int64_t n = 0; n < tokens; n++) {
      const double x = size(n);
      if (!(x < INFINITY)) return INFINITY;
      largest = fmax(largest, x), smallest = fmin(smallest, x);
    }
    return largest / smallest;
  }
  static double largest_of(const FmTensor& t, int64_t offset, int64_t channels) {
    constexpr int L = LANES<T>;
    T copy[FM_MAX_DIM];
    const T* row = copy;
    if (t.type == type_of<T>())
      row = (const T*)t.data + offset;
    else
      load_row(t.data, t.type, offset, (int)channels, copy);
    Vec<T> most{}, wrong{};  // NaN, if a number is not finite
    int64_t i = 0;
    for (; i + L <= channels; i += L) {
      const Vec<T> x = load(row + i), size = x < 0 ? -x : x;
      most = size > most ? size : most;
      wrong += x * (T)0;
    }
    for (; i < channels; i++) {
      const T size = row[i] < 0 ? -row[i] : row[i];
      most[0] = size > most[0] ? size : most[0];
      wrong[0] += row[i] * 0;
    }
    T largest = 0, sum = 0;
    for (int l = 0; l < L; l++) largest = most[l] > largest ? most[l] : largest, sum += wrong[l];
    return sum == 0 ? (double)largest : INFINITY;
  }
  double values() const {
    return ratio_of(h.keys,
                    [&](int64_t n) { return largest_of(c.v, at(c.v, h.batch, h.key_head, h.key_start + n), c.value_dim); });
  }
  double output_grads() const {
    double ratio = 1;
    for (int64_t q = h.key_head * h.groups; c.d_o.data && q < (h.key_head + 1) * h.groups; q++) {
      const T* g = (const T*)c.g.data;
      ratio =
          fmax(ratio, ratio_of(h.queries, [&](int64_t n) {
                 const int64_t token = h.query_start + n;
                 return largest_of(c.d_o, at(c.d_o, h.batch, q, token), c.value_dim) / (double)g[at(c.g, h.batch, q, token)];
               }));
    }
    return ratio;
  }
};

}  // namespace FM_LEVEL
