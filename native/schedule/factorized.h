// One pass of the factorized form over all heads.
//
// If there are enough heads for all threads, a thread walks whole heads. With fewer, segments of a head are summed, the sums
// scanned, and the segments then used, each with the state of what comes before it.
#pragma once
#include "forms/factorized.h"
#include "schedule/heads.h"
#include "schedule/threads.h"

namespace FM_LEVEL {

template <class T>
class FactorizedPass {
 public:
  // `from` and `to` are public states or null; d_scale is [heads][segments][groups] or null; `kept` is [kept_size()] if there
  // are two walks.
  FactorizedPass(const Heads& heads, const FmPool& pool, Pass pass, const void* from, void* to, double* d_scale,
                 Walk walk = Walk::only, T* kept = nullptr)
      : heads(heads),
        call(heads.call),
        pool(pool),
        pass(pass),
        from((const T*)from),
        to((T*)to),
        d_scale(d_scale),
        walk(walk),
        kept(kept),
        walks(call.is_causal || walk != Walk::only),
        sizes(call, (int)call.order, call.state_is_total || (!from && !to)),
        size(round_up(sizes.features.size, 64)),
        reverse((pass == Pass::key_grads) != (walk == Walk::first)),
        is_summed(pass == Pass::query_grads && !walks && call.state_is_total),
        is_long(max(call.queries, call.keys) > LONG * sizes.chunk * heads.segments),
        bundle(heads.segments > 1 ? 1 : bundled_heads()),
        bundles((call.key_heads + bundle - 1) / bundle) {}

  // The pass as a task whose items are independent, if heads are not cut into segments.
  struct WalkBundle;
  int64_t items() const { return heads.states * bundles; }
  WalkBundle task() const { return {*this}; }
  bool run() {
    if (heads.segments == 1) return run_parallel(pool, items(), task());
    Workspace shared;
    if (!shared.allocate_zeros([&] { states = shared.take<T>(heads.count * (heads.segments + 1) * size); })) return false;
    return sum_segments() && scan_segments() && use_segments();
  }
  // Size of what the first of two walks keeps for the second.
  int64_t kept_size() const {
    return call.key_heads * chunk_slots() * kept_groups() * FactorizedForm<T>::kept_size(sizes, pass);
  }

 private:
  // The number of chunks above which additions to a state are compensated: this many are still good to 1e-6, and the
  // compensation doubles what is read and written of the state.
  static constexpr int64_t LONG = 1024;
  // Bytes of states that a thread keeps in its cache, next to all else.
  static constexpr int64_t BUNDLE_BYTES = 128 << 10;

  const Heads& heads;
  const FmCall& call;
  const FmPool& pool;
  const Pass pass;
  const T* from;
  T* to;
  double* d_scale;
  const Walk walk;
  T* const kept;
  const bool walks;  // a state along the chunks; else all tokens read the sum of all
  const Sizes<T> sizes;
  const int64_t size;                      // of a state
  const bool reverse, is_summed, is_long;  // is_summed: `from` is what the sum would be
  const int64_t bundle, bundles;
  T* states = nullptr;  // [heads][1 + segments][size]: the total, and one of each segment

  // The number of heads of a sequence that a thread takes through it together. Heads that lie side by side in memory, as they
  // come from a projection, are then read page by page; but their states must stay in the cache.
  int64_t bundled_heads() const {
    const int64_t bytes = size * (int64_t)sizeof(T) * (is_long ? 2 : 1);
    const int64_t share = (heads.count + pool.threads - 1) / pool.threads;
    return max(1, min(BUNDLE_BYTES / bytes, min(share, call.key_heads)));
  }
  T* total_of(int64_t i) const { return states + i * (heads.segments + 1) * size; }
  T* state_of(int64_t i, int64_t part) const { return total_of(i) + (1 + part) * size; }
  // Segments in the order of the walk.
  int64_t first_segment() const { return reverse ? heads.segments - 1 : 0; }
  int64_t last_segment() const { return reverse ? 0 : heads.segments - 1; }

  // The number of chunks of all sequences. Each has a separate place, because sequences of a packed batch start anywhere in it.
  int64_t chunks_of(int64_t tokens) const { return (tokens + sizes.chunk - 1) / sizes.chunk; }
  int64_t chunk_slots() const {
    return heads.is_packed() ? chunks_of(call.keys) + heads.states : heads.states * chunks_of(call.keys);
  }
  int64_t kept_groups() const { return pass == Pass::key_grads ? 1 : heads.groups; }
  T* kept_of(const Head& h, int64_t begin) const {
    if (!kept) return nullptr;
    const int64_t first = heads.is_packed() ? h.key_start / sizes.chunk + h.state : h.state * chunks_of(call.keys);
    const int64_t slot = h.key_head * chunk_slots() + first + begin / sizes.chunk;
    return kept + slot * kept_groups() * FactorizedForm<T>::kept_size(sizes, pass);
  }
  int64_t tokens_summed(const Head& h) const {
    return walks ? max(h.queries, h.keys) : pass == Pass::key_grads ? h.queries : h.keys;
  }
  int64_t tokens_used(const Head& h) const {
    return walks ? max(h.queries, h.keys) : pass == Pass::key_grads ? h.keys : h.queries;
  }

  void load_state(int64_t i, T* state) const {
    if (from)
      state_from_public(sizes.features, from + i * sizes.public_state_size(), state);
    else
      memset(state, 0, size * sizeof(T));
  }
  void store_state(int64_t i, const T* state) const {
    if (to) state_to_public(sizes.features, state, to + i * sizes.public_state_size());
  }

  // The chunks of a segment in the order of the walk.
  struct Chunks {
    Range tokens;
    int64_t chunk, count;
    bool reverse;
    Range operator[](int64_t n) const {
      const int64_t begin = tokens.begin + (reverse ? count - 1 - n : n) * chunk;
      return {begin, min(tokens.end, begin + chunk)};
    }
  };
  Chunks chunks(int64_t tokens, int64_t part) const {
    const Range range = heads.segment(tokens, part, sizes.chunk);
    return {range, sizes.chunk, (range.end - range.begin + sizes.chunk - 1) / sizes.chunk, reverse};
  }

  // The factor on a state over a segment.
  T fade(int64_t i, int64_t part) const {
    const FmTensor& t = call.log_decay;
    if (!t.data) return 1;
    const Head h = heads.head(i);
    const Range tokens = heads.segment(h.keys, part, sizes.chunk);
    double sum = 0;
    for (int64_t n = tokens.begin; n < tokens.end; n++)
      sum += bounded_decay(((const T*)t.data)[at(t, h.batch, h.key_head, h.key_start + n)]);
    return exp_of_negative<T>(sum);
  }

  struct Worker {
    const FactorizedPass& pass;
    FactorizedForm<T> form;
    T *sums = nullptr, *lost = nullptr;  // [bundle][size]; sums only where a thread walks whole heads
    T* centres = nullptr;                // [bundle][x_pitch]
    Workspace workspace;

    template <class Task>
    explicit Worker(const Task& task) : pass(task.pass), form(pass.sizes, pass.pass, pass.walk) {}
    bool allocate() {
      return workspace.allocate([&] {
        form.take(workspace);
        if (pass.heads.segments == 1) sums = workspace.take<T>(pass.bundle * pass.size);
        if (pass.is_long) lost = workspace.take<T>(pass.bundle * pass.size);
        if (pass.sizes.centres) centres = workspace.take<T>(pass.bundle * pass.sizes.x_pitch);
      });
    }
    T* lost_of(int64_t n) const { return lost ? lost + n * pass.size : nullptr; }
    T* centre_of(int64_t n) const { return centres ? centres + n * pass.sizes.x_pitch : nullptr; }
    void find_centre(int64_t i, int64_t n) {
      if (centres) form.keys.find_centre(pass.heads.head(i), centre_of(n));
    }
    State<T> state(int64_t n) const { return {sums + n * pass.size, lost_of(n), centre_of(n)}; }
    // Segments bring the sum along; compensation starts again at zero.
    State<T> state_at(T* sum) const { return {sum, lost_of(0), centre_of(0)}; }
    void forget_losses() {
      if (lost) memset(lost, 0, pass.bundle * pass.size * sizeof(T));
    }
    // One chunk of the segment `part` of head i. `empty`: the state is known to be zero; `keep`: it is needed afterwards.
    void use(int64_t i, int64_t part, Range chunk, State<T> state, bool empty, bool keep) {
      form.d_scale = pass.d_scale ? pass.d_scale + (i * pass.heads.segments + part) * pass.heads.groups : nullptr;
      const Head head = pass.heads.head(i);
      form.kept = pass.kept_of(head, chunk.begin);
      if (pass.walks)
        form.walk(head, chunk.begin, chunk.end, state, empty, keep);
      else
        form.use(head, chunk.begin, chunk.end, state);
    }
  };

 public:
  // A bundle of whole heads of one sequence, chunk by chunk.
  struct WalkBundle {
    using Worker = FactorizedPass::Worker;
    const FactorizedPass& pass;

    void run(Worker& worker, int64_t item) const {
      const int64_t key_heads = pass.call.key_heads;
      const int64_t first = item / pass.bundles * key_heads + item % pass.bundles * pass.bundle;
      const int64_t count = min(pass.bundle, (item / pass.bundles + 1) * key_heads - first);
      const Head head = pass.heads.head(first);  // all of them have its length
      worker.forget_losses();
      each(first, count, [&](int64_t n) {
        worker.find_centre(first + n, n);
        pass.load_state(first + n, worker.state(n).sum);
      });
      if (!pass.walks && !pass.is_summed) sum(worker, first, count, pass.chunks(pass.tokens_summed(head), 0));
      if (!pass.walks) store(worker, first, count);
      use(worker, first, count, pass.chunks(pass.tokens_used(head), 0));
      if (pass.walks) store(worker, first, count);
    }
    void sum(Worker& worker, int64_t first, int64_t count, const Chunks& chunks) const {
      for (int64_t c = 0; c < chunks.count; c++)
        each(first, count,
             [&](int64_t n) { worker.form.add(pass.heads.head(first + n), chunks[c].begin, chunks[c].end, worker.state(n)); });
    }
    void use(Worker& worker, int64_t first, int64_t count, const Chunks& chunks) const {
      for (int64_t c = 0; c < chunks.count; c++)
        each(first, count, [&](int64_t n) {
          worker.use(first + n, 0, chunks[c], worker.state(n), !pass.from && c == 0, pass.to || c < chunks.count - 1);
        });
    }
    void store(Worker& worker, int64_t first, int64_t count) const {
      each(first, count, [&](int64_t n) { pass.store_state(first + n, worker.state(n).sum); });
    }
    // The heads among `count` that are not dense.
    template <class F>
    void each(int64_t first, int64_t count, const F& f) const {
      for (int64_t n = 0; n < count; n++)
        if (!pass.heads.is_dense(first + n)) f(n);
    }
  };

 private:
  // The sum of one segment alone. Where states walk, the sum of the last segment is unused.
  struct SumSegment {
    using Worker = FactorizedPass::Worker;
    const FactorizedPass& pass;

    void run(Worker& worker, int64_t item) const {
      const int64_t i = item / pass.heads.segments, part = item % pass.heads.segments;
      if (pass.heads.is_dense(i) || (pass.walks && part == pass.last_segment())) return;
      const Head head = pass.heads.head(i);
      const Chunks chunks = pass.chunks(pass.tokens_summed(head), part);
      worker.forget_losses();
      worker.find_centre(i, 0);
      for (int64_t c = 0; c < chunks.count; c++)
        worker.form.add(head, chunks[c].begin, chunks[c].end, worker.state_at(pass.state_of(i, part)));
    }
  };
  bool sum_segments() { return is_summed || run_parallel(pool, heads.count * heads.segments, SumSegment{*this}); }

  // Adds up the sums of a head's segments. Where states walk, each becomes the sum of what comes before it.
  struct ScanHead {
    struct Worker {
      explicit Worker(const ScanHead&) {}
      bool allocate() { return true; }
    };
    const FactorizedPass& pass;

    void run(Worker&, int64_t i) const {
      if (pass.heads.is_dense(i)) return;
      const bool walks = pass.walks;
      T* total = pass.total_of(i);
      pass.load_state(i, total);
      for (int64_t n = 0; n < pass.heads.segments; n++) {
        const int64_t part = pass.reverse ? pass.heads.segments - 1 - n : n;
        T *sum = pass.state_of(i, part), fade = pass.fade(i, part);
        for (int64_t e = 0; e < pass.size; e++) {
          const T before = total[e];
          total[e] = total[e] * fade + sum[e];
          if (walks) sum[e] = before;
        }
      }
      if (!walks) pass.store_state(i, total);
    }
  };
  bool scan_segments() { return run_parallel(pool, heads.count, ScanHead{*this}); }

  // The tokens of one segment, with the state of all or, when causal, of what comes before them.
  struct UseSegment {
    using Worker = FactorizedPass::Worker;
    const FactorizedPass& pass;

    void run(Worker& worker, int64_t item) const {
      const int64_t i = item / pass.heads.segments, part = item % pass.heads.segments;
      if (pass.heads.is_dense(i)) return;
      const bool walks = pass.walks, is_last = part == pass.last_segment();
      const bool starts_empty = !pass.from && part == pass.first_segment();
      T* state = walks ? pass.state_of(i, part) : pass.total_of(i);
      const Chunks chunks = pass.chunks(pass.tokens_used(pass.heads.head(i)), part);
      worker.forget_losses();
      worker.find_centre(i, 0);
      for (int64_t c = 0; c < chunks.count; c++)
        worker.use(i, part, chunks[c], worker.state_at(state), starts_empty && c == 0,
                   (pass.to && is_last) || c < chunks.count - 1);
      if (walks && is_last) pass.store_state(i, state);
    }
  };
  bool use_segments() { return run_parallel(pool, heads.count * heads.segments, UseSegment{*this}); }
};

}  // namespace FM_LEVEL
