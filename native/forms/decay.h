// Decay inside one chunk of tokens: factors on keys, queries and a state, from sums of log_decay over the chunk alone.
//
// c[t] is the sum of log_decay from the chunk's first token to t, with that of t, in fp64. Every exponent is at most 0. A state
// is decayed to the last token that was added to it.
//
// Decays are bounded by STRONGEST before they are summed. Its exp is exactly 0 in T, so no weight depends on the bound. Without
// it a decay such as -1e16 would leave no digits for the decays after it. fastmax/decay.py has the same numbers and makes the
// gradients beyond them 0.
#pragma once
#include <algorithm>

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
  static bool both_ways(const FmCall& call) { return used(call) && !call.is_causal; }

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
  // Works in place and runs up to a vector past the end, which the workspace allows.
  static void exp_all(T* x, int n) {
    for (int i = 0; i < n; i += LANES<T>) store(x + i, exp_of_negative<T>(load(x + i)));
  }

  // pairs[key][W]: the factor on each of `seen` keys from `first_key` on at the W queries from `query` on. A key behind a query
  // counts as 1 if `is_causal`, as causality hides it; else it fades like one before it.
  const T* fade_pairs(int64_t query, int64_t first_key, int seen, bool is_causal) {
    const double* at_query = c + query;
    const int queries = (int)min(W, count - query);
    const int before = (int)max(0, min(seen, query - first_key));
    const int behind = is_causal ? seen : (int)max(before, min(seen, query + queries - first_key));
    fade_apart(at_query, queries, at_query[0], first_key, 0, before);
    if (before < behind && at_query[0] - at_query[queries - 1] < SPLITS) {
      fade_near(at_query, queries, first_key + before - query, before, behind, is_causal);
    } else {
      for (int n = before; n < behind; n++) {
        const double of_key = c[first_key + n];
        T* row = pairs + n * W;
        for (int w = 0; w < W; w++) row[w] = 0;
        for (int w = 0; w < queries; w++) {
          const double x = at_query[w] - of_key;
          row[w] = (T)(x < 0 ? x : is_causal ? 0 : -x);
        }
        exp_all(row, W);
      }
    }
    fade_apart(at_query, queries, at_query[queries - 1], first_key, behind, seen);
    return pairs;
  }
  // The same for the keys `begin` to `end`, which are among the queries, starting with the one in the lane `first`. Takes
  // quotients of the factors since the first query where these are large enough.
  static constexpr double SPLITS = sizeof(T) == sizeof(float) ? 40 : 300;
  void fade_near(const double* at_query, int queries, int64_t first, int begin, int end, bool is_causal) {
    T since[W] = {}, inverse[W];
    for (int w = 0; w < queries; w++) since[w] = (T)(at_query[w] - at_query[0]);
    exp_all(since, W);
    for (int w = 0; w < W; w++) inverse[w] = 1 / since[w];
    for (int n = begin; n < end; n++) {
      const int64_t own = first + n - begin;
      for (int w = 0; w < W; w += LANES<T>) {
        Vec<T> x = load(since + w) * inverse[own];
        if (!is_causal) {
          const Vec<T> y = load(inverse + w) * since[own];
          x = x < y ? x : y;
        }
        store(pairs + n * W + w, x);
      }
    }
  }
  // The same for the keys `begin` to `end`, which are all before the queries or all behind them. Their exponents are split at
  // the nearest query, whose sum is `nearest`: into a factor of the key and one of the query, neither above 1.
  void fade_apart(const double* at_query, int queries, double nearest, int64_t first_key, int begin, int end) {
    if (begin >= end) return;
    T of_query[W] = {};
    for (int w = 0; w < queries; w++) of_query[w] = -(T)distance(at_query[w], nearest);
    for (int n = begin; n < end; n++) earlier[n] = -(T)distance(c[first_key + n], nearest);
    exp_all(of_query, W);
    exp_all(earlier + begin, end - begin);
    const Vec<T> low = load(of_query), high = load(of_query + LANES<T>);
    for (int n = begin; n < end; n++) {
      store(pairs + n * W, low * earlier[n]);
      store(pairs + n * W + LANES<T>, high * earlier[n]);
    }
  }
  static double distance(double a, double b) { return a < b ? b - a : a - b; }

  // The largest sum of factors on the keys before a token, and of those behind it, itself counted on both sides; or all keys if
  // these are fewer. Keys that have faded below a factor are together at most that many times the factor. Uses `since_start`.
  double keys_in_reach() {
    for (int n = 0; n < count; n++) since_start[n] = n ? (T)(c[n] - c[n - 1]) : 0;
    exp_all(since_start, count);
    double before = 0, behind = 0, most_before = 0, most_behind = 0;
    for (int n = 0; n < count; n++) {
      before = 1 + before * since_start[n];
      behind = 1 + (n ? behind * since_start[count - n] : 0);
      most_before = before > most_before ? before : most_before, most_behind = behind > most_behind ? behind : most_behind;
    }
    const double sum = most_before + most_behind;
    return sum < count ? sum : count;
  }

  // The keys that the queries `begin` to `end` can still see: those whose weights have exponents from `lowest` on.
  Range visible_keys(int64_t begin, int64_t end, bool is_causal, double lowest) const {
    // sums fall from token to token
    const double *first = std::partition_point(c, c + begin, [&](double at) { return c[begin] - at < lowest; }),
                 *last = c + end;
    if (!is_causal)
      last = std::partition_point(last, (const double*)c + count, [&](double at) { return at - c[end - 1] >= lowest; });
    return {first - c, last - c};
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

  // d_sums += the gradients of c: `shares`, [key][W], are the terms P u . w of a sub-chunk of queries and of keys, whose
  // weights P have the exponent -|c_query - c_key|. For a query and the key of the same token it is 0.
  void add_sum_grads(const T* shares, int64_t query, int64_t first_key, int keys, bool is_causal, T* d_sums) const {
    constexpr int L = LANES<T>;
    const int64_t diagonal = is_causal ? query - first_key : UNMASKED;
    const int seen = visible<T>(keys, diagonal), by_all = visible_to_first_half<T>(keys, diagonal);
    Vec<T> low{}, high{};  // the shares of the queries
    for (int begin = 0; begin < seen; begin += L) {
      Vec<T> of_keys[L] = {};
      for (int i = 0; i < L && begin + i < seen; i++) {
        const int n = begin + i;
        const int64_t here = first_key + n - query;  // the lane of the key itself; those before it are earlier queries
        Vec<T> a = n < by_all ? load(shares + n * W) : Vec<T>{}, b = load(shares + n * W + L);
        if (here >= W) {
          a = -a, b = -b;
        } else if (here >= 0) {
          T row[W];
          store(row, a), store(row + L, b);
          for (int w = 0; w <= here; w++) row[w] = w < here ? -row[w] : 0;
          a = load(row), b = load(row + L);
        }
        low += a, high += b;
        of_keys[i] = a + b;
      }
      T by_key[L];
      store(by_key, sums<T>(of_keys));
      for (int i = 0; i < L && begin + i < seen; i++) d_sums[first_key + begin + i] -= by_key[i];
    }
    T by_query[W];
    store(by_query, low), store(by_query + L, high);
    for (int w = 0; w < min(W, count - query); w++) d_sums[query + w] += by_query[w];
  }

  // Multiplies rows [sub][columns][W] of tokens by `factors`, in place.
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
  // Multiplies each row of a token by its factor, in place.
  static void fade_rows(T* rows, int64_t pitch, int columns, const T* factors, int count) {
    for (int n = 0; n < count; n++) multiply_row(rows + n * pitch, factors[n], columns);
  }
};

}  // namespace FM_LEVEL
