// A call cut into heads, and the heads into segments.
//
// A segment is a run of tokens of one head. A head has more than one segment only if heads are fewer than threads. Results
// depend on the number of threads at most, never on which thread does what.
#pragma once
#include <algorithm>

#include "forms/reach.h"
#include "schedule/threads.h"

namespace FM_LEVEL {

struct Heads {
  const FmCall& call;
  int64_t count, states, groups;  // key heads of all sequences, sequences, query heads per key head
  int64_t segments;               // of each head

  int64_t* by_cost = nullptr;  // the heads of the dense form, the most expensive first: these are started first
  int64_t dense_count = 0;

  Heads(const FmCall& c, int64_t threads) : call(c) {
    states = is_packed() ? c.sequences : c.batch;
    count = states * c.key_heads;
    groups = count ? c.query_heads / c.key_heads : 0;
    segments = count == 0 || count >= threads ? 1 : (threads + count - 1) / count;
  }
  bool is_packed() const { return call.sequences >= 0; }
  Heads(const Heads&) = delete;

  // Chooses the form of each head. Called before everything else; false if out of memory.
  template <class T>
  bool choose_forms(const FmPool& pool) {
    const bool ok = memory.allocate([&] {
      is_dense_ = memory.take<bool>(count);
      by_cost = memory.take<int64_t>(count);
      costs = memory.take<double>(count);
      lowest = memory.take<double>(count);
    });
    // reading fewer decays than these takes less time than waking the other threads
    const bool alone = !DecayChunk<T>::used(call) || states * call.key_heads * call.keys < 1 << 14;
    if (!ok || !run_parallel(alone ? FmPool{nullptr, 1} : pool, count, ChooseForm<T>{*this})) return false;
    for (int64_t i = 0; i < count; i++)
      if (is_dense_[i]) by_cost[dense_count++] = i;
    std::sort(by_cost, by_cost + dense_count,
              [&](int64_t a, int64_t b) { return costs[a] != costs[b] ? costs[a] > costs[b] : a < b; });
    return true;
  }
  bool is_dense(int64_t i) const { return is_dense_[i]; }
  bool any(bool dense) const { return dense ? dense_count > 0 : dense_count < count; }
  Head head(int64_t i) const {
    const int64_t state = i / call.key_heads;
    Head h{&call, is_packed() ? 0 : state, i % call.key_heads, groups, 0, call.queries, 0, call.keys, state, lowest[i]};
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

 private:
  Workspace memory;
  bool* is_dense_ = nullptr;
  double* costs = nullptr;   // pairs of tokens in the dense form
  double* lowest = nullptr;  // Head::lowest

  template <class T>
  struct ChooseForm {
    struct Worker {
      const FmCall& call;
      DecayChunk<T> decay;
      Workspace workspace;

      explicit Worker(const ChooseForm& task) : call(task.heads.call) {}
      bool allocate() {
        return workspace.allocate([&] { decay.take(workspace, DecayChunk<T>::used(call) ? call.keys : 0, 0); });
      }
    };
    Heads& heads;

    void run(Worker& worker, int64_t i) const {
      const FmCall& c = heads.call;
      heads.lowest[i] = ExpTraits<T>::LOWEST;
      Head h = heads.head(i);
      const int64_t form = c.forms ? c.forms[h.state] : c.form;
      const double all = (double)h.queries * h.keys / (c.is_causal ? 2 : 1);
      double pairs = all;
      if (DecayChunk<T>::used(c) && form != FM_FACTORIZED && h.queries > 0) {
        worker.decay.load_sums(h, 0, h.keys);
        const Reach<T> reach(h, worker.decay.keys_in_reach());
        pairs = count_pairs(worker.decay, h, reach.lowest());
        if (pairs < all && (form == FM_DENSE || is_cheaper(h, pairs))) {  // else the ratio of values does not matter
          h.lowest = heads.lowest[i] = reach.lowest(reach.ratio());
          pairs = count_pairs(worker.decay, h, h.lowest);
        }
      }
      heads.costs[i] = pairs;
      heads.is_dense_[i] = form == FM_DENSE || (form == FM_BY_REACH && is_cheaper(h, pairs));
    }
    // True if the dense form is cheaper, by the multiply-adds of fastmax/plan.py; a decay that fades both ways takes two sums.
    static bool is_cheaper(const Head& h, double pairs) {
      const FmCall& c = *h.call;
      const int64_t dim = c.head_dim, features = 1 + dim + (c.order == 2 ? dim * (dim + 1) / 2 : 0);
      const double factorized = (double)(h.queries + h.keys) * features * (c.value_dim + 1) * (c.is_causal ? 1 : 2);
      return pairs * (dim + c.value_dim + 1) <= factorized;
    }
    // The pairs of a query and a key that it can see.
    static double count_pairs(const DecayChunk<T>& decay, const Head& h, double lowest) {
      constexpr int W = WIDE<T>;
      double pairs = 0;
      for (int64_t a = 0; a < h.queries; a += W) {
        const int64_t end = min(a + W, h.queries);
        const Range seen = decay.visible_keys(a, end, h.call->is_causal, lowest);
        const double keys = (double)(seen.end - seen.begin);
        pairs += (end - a) * (h.call->is_causal ? keys - (end - a) * 0.5 : keys);
      }
      return pairs;
    }
  };
};

}  // namespace FM_LEVEL
