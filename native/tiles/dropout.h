// Which features of which tokens dropout keeps: the hash that src/fastmax/dropout.py defines, bit for bit, on vectors.
#pragma once
#include "simd/vec.h"

namespace FM_LEVEL {

// A bijection of 64-bit integers in which every input bit reaches every output bit.
FM_INLINE uint64_t mix(uint64_t x) {
  constexpr uint64_t A = 0x9E3779B97F4A7C15, B = 0xB4B82F3A5E0B592B;
  x *= A;
  x ^= x >> 32;
  x *= B;
  x ^= x >> 29;
  x *= A;
  return x ^ (x >> 32);
}

// Words of 32 bits, one for each lane of a vector of T.
template <class T>
struct WordVector {
  typedef uint32_t type __attribute__((vector_size(LANES<T> * sizeof(uint32_t))));
  typedef uint32_t unaligned __attribute__((vector_size(LANES<T> * sizeof(uint32_t)), aligned(4), may_alias));
  typedef int32_t whole __attribute__((vector_size(LANES<T> * sizeof(int32_t))));
};
template <class T>
using Words = typename WordVector<T>::type;

template <class T>
FM_INLINE Words<T> load_words(const uint32_t* p) {
  return (Words<T>)*(const typename WordVector<T>::unaligned*)p;
}
template <class T>
FM_INLINE Words<T> broadcast_word(uint32_t x) {
  return x - Words<T>{};
}
// The words of a token.
template <class T>
struct TokenWords {
  Words<T> add, multiply;
};

// The masks on the features of a chunk of tokens.
template <class T>
struct FeatureMasks {
  const uint32_t* features = nullptr;                  // [blocks][WIDE], the words of features; null where none are dropped
  const uint32_t *add = nullptr, *multiply = nullptr;  // [tokens], the words of tokens
  int32_t least = 0;                                   // an entry whose hash is lower is dropped,
  T scale = 1;                                         // and one that is kept is multiplied by this
  bool linear = false;                                 // whether features of degree 1 may be dropped too

  bool drop(bool is_linear) const { return features && (linear || !is_linear); }
  TokenWords<T> token(int64_t n) const { return {broadcast_word<T>(add[n]), broadcast_word<T>(multiply[n])}; }
  TokenWords<T> tokens(int64_t n) const { return {load_words<T>(add + n), load_words<T>(multiply + n)}; }
};

// Applies the masks to features x or their gradients. Lanes are features of one token, or tokens of one feature.
template <class T>
FM_INLINE Vec<T> kept(const FeatureMasks<T>& masks, Vec<T> x, Words<T> feature, const TokenWords<T>& token) {
  Words<T> hash = (feature + token.add) * token.multiply;
  hash ^= hash >> 16;
  hash *= 0xD35A2D97u;
  const auto keep = (typename WordVector<T>::whole)hash >= masks.least;
  return __builtin_convertvector(keep, Integers<T>) ? x * masks.scale : Vec<T>{};
}
// Replaces tile[r], gradients of a feature of the WIDE tokens from `token` on, by what is left of them. `features` are the
// words of these `rows` features; the words of all WIDE tokens must be readable.
template <class T>
FM_NOINLINE void keep_tile(const FeatureMasks<T>& masks, const uint32_t* features, int64_t token, int rows, Vec<T> (*tile)[2]) {
  FM_REQUIRE(masks.add && masks.multiply && features && rows <= ROWS);
  const TokenWords<T> low = masks.tokens(token), high = masks.tokens(token + LANES<T>);
  for (int r = 0; r < rows; r++) {
    const Words<T> feature = broadcast_word<T>(features[r]);
    tile[r][0] = kept(masks, tile[r][0], feature, low), tile[r][1] = kept(masks, tile[r][1], feature, high);
  }
}

}  // namespace FM_LEVEL
