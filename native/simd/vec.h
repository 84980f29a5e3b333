// Vectors of one instruction set level, and the register tile that every product runs on.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define FM_VECTOR_BYTES 64
#define FM_ROWS 12
#elif defined(__AVX2__)
#define FM_VECTOR_BYTES 32
#define FM_ROWS 6
#elif defined(__aarch64__)
#define FM_VECTOR_BYTES 16
#define FM_ROWS 12
#else
#define FM_VECTOR_BYTES 16
#define FM_ROWS 4
#endif
#define FM_INLINE static inline __attribute__((always_inline))
#define FM_NOINLINE __attribute__((noinline))

// The requirements of a primitive. Sanitizer builds check them and abort; in all others they are a comment.
#if defined(FM_CHECKED)
#include <stdio.h>
#include <stdlib.h>
#define FM_REQUIRE(condition) \
  ((condition) ? (void)0 : (fprintf(stderr, "%s:%d: required: %s\n", __FILE__, __LINE__, #condition), abort()))
#else
#define FM_REQUIRE(condition) ((void)sizeof(condition))
#endif

namespace FM_LEVEL {

constexpr int ROWS = FM_ROWS;  // of a register tile: each takes two accumulators, and there are 16 or 32 registers

template <class T>
struct Vector {
  typedef T type __attribute__((vector_size(FM_VECTOR_BYTES)));
  typedef T unaligned __attribute__((vector_size(FM_VECTOR_BYTES), aligned(sizeof(T)), may_alias));
};
template <class T>
using Vec = typename Vector<T>::type;
template <class T>
constexpr int LANES = FM_VECTOR_BYTES / sizeof(T);
template <class T>
constexpr int WIDE = 2 * LANES<T>;  // the columns of a register tile

// Integers of the width of T, a vector of them.
template <class T>
struct IntegerVector {
  typedef int64_t type __attribute__((vector_size(FM_VECTOR_BYTES)));
};
template <>
struct IntegerVector<float> {
  typedef int32_t type __attribute__((vector_size(FM_VECTOR_BYTES)));
};
template <class T>
using Integers = typename IntegerVector<T>::type;

template <class T>
FM_INLINE Vec<T> load(const T* p) {
  return (Vec<T>)*(const typename Vector<T>::unaligned*)p;
}
template <class T>
FM_INLINE void store(T* p, Vec<T> x) {
  *(typename Vector<T>::unaligned*)p = (typename Vector<T>::unaligned)x;
}
template <class T>
FM_INLINE Vec<T> broadcast(T x) {
  return x - Vec<T>{};
}
// x with the lanes before `first` set to zero, whatever they are.
template <class T>
FM_INLINE Vec<T> lanes_from(Vec<T> x, int64_t first) {
  Integers<T> lane{};
#pragma GCC unroll 16
  for (int i = 0; i < LANES<T>; i++) lane[i] = i;
  const auto least = (decltype(lane[0] + 0))(first < -1 ? -1 : first > LANES<T> ? LANES<T> : first);
  return (Vec<T>)((Integers<T>)x & (lane >= least));
}
FM_INLINE int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
FM_INLINE int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
FM_INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

template <int N>
struct Int {
  static constexpr int value = N;
};

// f(Int<n>) for a number of rows known only at run time.
template <int N = ROWS, class F>
FM_INLINE void with_rows(int n, const F& f) {
  if constexpr (N == 1)
    f(Int<1>{});
  else if (n == N)
    f(Int<N>{});
  else
    with_rows<N - 1>(n, f);
}

// Cuts `total` rows into tiles of nearly equal height: 13 rows as 5 + 4 + 4, not 6 + 6 + 1, which would starve the units.
struct Tiles {
  int count, low, higher;  // the first `higher` tiles have one row more than `low`
  explicit Tiles(int total, int most = ROWS)
      : count((total + most - 1) / most), low(count ? total / count : 0), higher(total - low * count) {}
  int start(int i) const { return i * low + (i < higher ? i : higher); }
  int rows(int i) const { return low + (i < higher); }
};

// acc[r] += sum over k of a[k * a_step + r * a_row] * b[k * b_step ..]; with First = 1 in the second half of the lanes alone.
template <class T, int R, int First = 0>
FM_INLINE void multiply(Vec<T> (&acc)[R][2], const T* a, ptrdiff_t a_step, ptrdiff_t a_row, const T* b, ptrdiff_t b_step,
                        int64_t steps) {
  for (int64_t k = 0; k < steps; k++, a += a_step, b += b_step) {
    const Vec<T> b0 = First == 0 ? load(b) : Vec<T>{}, b1 = load(b + LANES<T>);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const Vec<T> x = broadcast(a[r * a_row]);
      if constexpr (First == 0) acc[r][0] += x * b0;
      acc[r][1] += x * b1;
    }
  }
}

template <class T, int R>
FM_INLINE void clear(Vec<T> (&acc)[R][2]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = Vec<T>{};
}
// p += acc. Sums are taken from zero over some dozen terms and then added: two levels lose less to rounding than one.
template <class T, int R>
FM_INLINE void add_tile(Vec<T> (&acc)[R][2], T* p, ptrdiff_t pitch) {
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    store(p + r * pitch, load(p + r * pitch) + acc[r][0]);
    store(p + r * pitch + LANES<T>, load(p + r * pitch + LANES<T>) + acc[r][1]);
  }
}
// p = p * fade + acc: a multiply-add is no dearer than an add. Of many sums `lost`, unless null, keeps what the additions
// before have rounded away (Kahan's summation).
template <class T, int R>
FM_INLINE void add_tile(Vec<T> (&acc)[R][2], T* p, T* lost, ptrdiff_t pitch, T fade) {
  if (!lost) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      store(p + r * pitch, load(p + r * pitch) * fade + acc[r][0]);
      store(p + r * pitch + LANES<T>, load(p + r * pitch + LANES<T>) * fade + acc[r][1]);
    }
    return;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
    for (int h = 0; h < 2; h++) {
      T *at = p + r * pitch + h * LANES<T>, *rest = lost + r * pitch + h * LANES<T>;
      const Vec<T> before = load(at) * fade, y = acc[r][h] - load(rest) * fade, after = before + y;
      store(at, after);
      store(rest, (after - before) - y);
    }
}
template <class T, int R>
FM_INLINE void store_tile(const Vec<T> (&acc)[R][2], T* p, ptrdiff_t pitch) {
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) store(p + r * pitch, acc[r][0]), store(p + r * pitch + LANES<T>, acc[r][1]);
}

}  // namespace FM_LEVEL
