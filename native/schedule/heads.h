// A call cut into heads, and the heads into segments.
//
// A segment is a run of tokens of one head: there is more than one per head only where heads are fewer than threads. Every
// number depends on the number of threads at most, never on which of them does what.
#pragma once
#include "forms/head.h"

namespace FM_LEVEL {

struct Range {
  int64_t begin, end;
};

struct Heads {
  const FmCall& call;
  int64_t count, states, groups;  // key heads of all sequences, sequences, query heads per key head
  int64_t segments;               // of each head

  Heads(const FmCall& c, int64_t threads) : call(c) {
    states = is_packed() ? c.sequences : c.batch;
    count = states * c.key_heads;
    groups = count ? c.query_heads / c.key_heads : 0;
    segments = count == 0 || count >= threads ? 1 : (threads + count - 1) / count;
  }
  bool is_packed() const { return call.sequences >= 0; }
  bool is_dense(int64_t i) const { return (call.forms ? call.forms[i / call.key_heads] : call.form) == FM_DENSE; }
  bool any(bool dense) const {
    for (int64_t i = 0; i < count; i += call.key_heads)
      if (is_dense(i) == dense) return true;
    return false;
  }
  Head head(int64_t i) const {
    const int64_t state = i / call.key_heads;
    Head h{&call, is_packed() ? 0 : state, i % call.key_heads, groups, 0, call.queries, 0, call.keys, state};
    if (is_packed()) {
      h.query_start = call.cu_queries[state], h.queries = call.cu_queries[state + 1] - h.query_start;
      h.key_start = call.cu_keys[state], h.keys = call.cu_keys[state + 1] - h.key_start;
    }
    return h;
  }
  // The tokens of a segment: whole chunks but for the last.
  Range segment(int64_t tokens, int64_t i, int64_t chunk) const {
    const int64_t chunks = (tokens + chunk - 1) / chunk;
    return {min(tokens, chunks * i / segments * chunk), min(tokens, chunks * (i + 1) / segments * chunk)};
  }
};

}  // namespace FM_LEVEL
