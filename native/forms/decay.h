// Decay inside one chunk of tokens: factors on keys, queries and a state, from sums of log_decay over the chunk alone.
//
// c[t] is the sum of log_decay from the chunk's first token to t, with that of t, in fp64. Every exponent is at most 0. A state
// is decayed to the last token that was added to it.
//
// Sums take no decay stronger than STRONGEST, whose exp is exactly 0 in T, so no weight depends on it. A stronger one, such as
// -1e16 or the lowest number there is, would take the digits of the decays after it. fastmax/decay.py has the same numbers, and
// makes the gradients beyond them 0.
#pragma once
#include "forms/head.h"
#include "simd/exp.h"

namespace FM_LEVEL {

template <class T>
constexpr double STRONGEST = sizeof(T) == sizeof(float) ? -110 : -750;
template <class T>
FM_INLINE double bounded_decay(T x) {
  return (double)x < STRONGEST<T> ? STRONGEST<T> : (double)x;
}

template <class T>
struct DecayChunk {
  static constexpr int W = WIDE<T>;
  double* c = nullptr;
  T *since_start, *until_end;  // exp(c[t]) and exp(c[last] - c[t])
  T *pairs, *earlier;          // of one sub-chunk of queries and some keys
  T whole = 1;                 // exp(c[last])
  int count = 0;

  void take(Workspace& workspace, int64_t capacity, int64_t keys_of_pairs) {
    c = workspace.take<double>(capacity);
    since_start = workspace.take<T>(capacity);
    until_end = workspace.take<T>(capacity);
    pairs = workspace.take<T>(keys_of_pairs * W);
    earlier = workspace.take<T>(round_up(keys_of_pairs, W));
  }
  static bool used(const FmCall& call) { return call.log_decay.data != nullptr; }

  void load_sums(const Head& h, int64_t begin, int64_t end) {
    const FmTensor& t = h.call->log_decay;
    const T* from = (const T*)t.data + at(t, h.batch, h.key_head, h.key_start + begin);
    count = (int)max(0, end - begin);
    double sum = 0;
    for (int n = 0; n < count; n++) c[n] = sum += bounded_decay(from[n * t.token_stride]);
  }
  void load_chunk(const Head& h, int64_t begin, int64_t end) {
    load_sums(h, begin, end);
    if (count == 0) {
      whole = 1;
      return;
    }
    const double last = c[count - 1];
    for (int n = 0; n < count; n++) since_start[n] = (T)c[n], until_end[n] = (T)(last - c[n]);
    exp_all(since_start, count);
    exp_all(until_end, count);
    whole = since_start[count - 1];
  }
  // In place; runs up to a vector past the end, which the workspace allows.
  static void exp_all(T* x, int n) {
    for (int i = 0; i < n; i += LANES<T>) store(x + i, exp_of_negative<T>(load(x + i)));
  }

  // pairs[key][W]: the factor on each of `keys` keys from `first_key` on at the W queries from `query` on. `seen` of them
  // may be seen by some of these; those that causality hides from a query count as 1 there.
  const T* fade_pairs(int64_t query, int64_t first_key, int seen) {
    const double* at_query = c + query;
    const int queries = (int)min(W, count - query);
    const int before = (int)max(0, min(seen, query - first_key));
    if (before > 0) {
      // All exponents split at the first query: a factor of the key and one of the query, neither above 1.
      T of_query[W] = {};
      for (int w = 0; w < queries; w++) of_query[w] = (T)(at_query[w] - at_query[0]);
      for (int n = 0; n < before; n++) earlier[n] = (T)(at_query[0] - c[first_key + n]);
      exp_all(of_query, W);
      exp_all(earlier, before);
      const Vec<T> low = load(of_query), high = load(of_query + LANES<T>);
      for (int n = 0; n < before; n++) {
        store(pairs + n * W, low * earlier[n]);
        store(pairs + n * W + LANES<T>, high * earlier[n]);
      }
    }
    for (int n = before; n < seen; n++) {
      const double of_key = c[first_key + n];
      T* row = pairs + n * W;
      for (int w = 0; w < W; w++) row[w] = 0;
      for (int w = 0; w < queries; w++) {
        const double x = at_query[w] - of_key;
        row[w] = (T)(x < 0 ? x : 0);
      }
      exp_all(row, W);
    }
    return pairs;
  }

  // The row of pairs of one token, `other`, with the W from `own` on: the factor on the earlier of the two at the later.
  void fade_row(T* row, int64_t own, int64_t other, bool is_later) const {
    T by[W];
    for (int64_t w = 0; w < W; w++) {
      const double x = own + w < count ? (is_later ? c[other] - c[own + w] : c[own + w] - c[other]) : 0;
      by[w] = (T)(x < 0 ? x : 0);
    }
    exp_all(by, W);
    for (int w = 0; w < W; w += LANES<T>) store(row + w, load(row + w) * load(by + w));
  }

  // Rows [sub][columns][W] of tokens, in place, by `factors`.
  void fade_lanes(T* rows, int columns, int subs, const T* factors) const {
    for (int s = 0; s < subs; s++) {
      T by[W];
      for (int w = 0; w < W; w++) by[w] = s * W + w < count ? factors[s * W + w] : 1;
      const Vec<T> low = load(by), high = load(by + LANES<T>);
      for (int i = 0; i < columns; i++, rows += W) {
        store(rows, load(rows) * low);
        store(rows + LANES<T>, load(rows + LANES<T>) * high);
      }
    }
  }
  // Rows [sub][columns][W] of queries, in place, by the factor on a state at them.
  void fade_queries(T* rows, int columns, int subs) const { fade_lanes(rows, columns, subs, since_start); }
  // Rows of tokens, in place, each by its factor.
  static void fade_rows(T* rows, int64_t pitch, int columns, const T* factors, int count) {
    for (int n = 0; n < count; n++) multiply_row(rows + n * pitch, factors[n], columns);
  }
};

}  // namespace FM_LEVEL
