// A call cut into heads, the heads into segments, and both spread over torch's threads.
//
// A segment is a run of tokens of one head: there is more than one per head only where heads are fewer than threads. Every
// number depends on the number of threads at most, never on which of them does what.
#pragma once
#include <atomic>

#include "factorized.h"
#include "whole.h"

namespace FM_LEVEL {

// Every thread takes the next of `items` until none is left; setup() makes what a thread works with, null if out of memory.
template <class Setup, class Body>
bool spread(const FmPool& pool, int64_t items, const Setup& setup, const Body& body) {
  struct Shared {
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    int64_t items;
    const Setup* setup;
    const Body* body;
  } shared;
  shared.items = items, shared.setup = &setup, shared.body = &body;
  const int64_t threads = least(items, pool.threads);
  const FmRange work = [](int64_t, int64_t, void* context) {
    Shared& s = *(Shared*)context;
    if (s.next.load() >= s.items) return;
    (*s.setup)(s.failed, [&](auto& mine) {
      for (int64_t i; (i = s.next.fetch_add(1)) < s.items;) (*s.body)(mine, i);
    });
  };
  if (threads <= 1 || !pool.parallel_for)
    work(0, 1, &shared);
  else
    pool.parallel_for(0, threads, 1, work, &shared);
  return !shared.failed;
}

template <class T>
struct Run {
  const FmCall& call;
  const FmPool& pool;

  Run(const FmCall& c, const FmPool& p) : call(c), pool(p) {}

  bool is_packed() const { return call.sequences >= 0; }
  int64_t states() const { return is_packed() ? call.sequences : call.batch; }
  int64_t heads() const { return states() * call.key_heads; }
  Head head(int64_t i) const {
    const int64_t state = i / call.key_heads, groups = call.query_heads / call.key_heads;
    Head h{&call, is_packed() ? 0 : state, i % call.key_heads, groups, 0, call.queries, 0, call.keys, state};
    if (is_packed()) {
      h.query_start = call.cu_queries[state], h.queries = call.cu_queries[state + 1] - h.query_start;
      h.key_start = call.cu_keys[state], h.keys = call.cu_keys[state + 1] - h.key_start;
    }
    return h;
  }
  bool is_dense(int64_t i) const { return (call.forms ? call.forms[i / call.key_heads] : call.form) == FM_DENSE; }
  int64_t state_size() const {
    const int64_t d = call.head_dim;
    return (1 + d + (call.order == 2 ? d * (d + 1) / 2 : 0)) * (call.value_dim + 1);
  }
  int64_t segments() const {
    const int64_t n = heads();
    if (n == 0 || n >= pool.threads) return 1;
    return (pool.threads + n - 1) / n;
  }
  // Tokens begin:end of a segment, whole chunks but for the last.
  static void segment(int64_t tokens, int64_t i, int64_t count, int64_t chunk, int64_t& begin, int64_t& end) {
    const int64_t chunks = (tokens + chunk - 1) / chunk;
    begin = least(tokens, chunks * i / count * chunk);
    end = least(tokens, chunks * (i + 1) / count * chunk);
  }

  int forward() {
    if (heads() == 0) return FM_OK;
    return dense(false, nullptr) && factorized(Pass::outputs, call.state_in, call.state_out, nullptr) ? FM_OK : FM_NO_MEMORY;
  }
  int backward() {
    if (heads() == 0) return zero_scales(), FM_OK;
    const int64_t slots = heads() * segments() * (call.query_heads / call.key_heads);
    double* d_scale = (double*)calloc(slots, sizeof(double));
    const bool ok = d_scale && dense(true, d_scale) && factorized(Pass::query_grads, call.state_in, nullptr, d_scale) &&
                    factorized(Pass::key_grads, call.d_state_out, call.d_state_in, d_scale);
    if (ok) sum_scales(d_scale);
    free(d_scale);
    return ok ? FM_OK : FM_NO_MEMORY;
  }
  void zero_scales() {
    for (int64_t h = 0; call.d_head_scale && h < call.query_heads; h++) call.d_head_scale[h] = 0;
  }
  void sum_scales(const double* parts) {
    zero_scales();
    if (!call.d_head_scale) return;
    const int64_t groups = call.query_heads / call.key_heads, per_head = segments() * groups;
    for (int64_t i = 0; i < heads(); i++)
      for (int64_t p = 0; p < per_head; p++)
        call.d_head_scale[i % call.key_heads * groups + p % groups] += parts[i * per_head + p];
  }

  // How many heads of one sequence a thread takes through it together. Heads that lie side by side in memory, as they come
  // from a projection, are then read page by page; but their states must stay in the cache.
  static constexpr int64_t BUNDLE = 128 << 10;
  int64_t bundled(int64_t state) const {
    const int64_t fitting = BUNDLE / (state * (int64_t)sizeof(T)), share = (heads() + pool.threads - 1) / pool.threads;
    return most(1, least(fitting, least(share, call.key_heads)));
  }

  // The passes of the factorized form: sum each segment, combine, use. `from` and `to` are public states or null.
  bool factorized(Pass pass, const void* from, void* to, double* d_scale) {
    const int64_t count = segments(), groups = call.query_heads / call.key_heads;
    bool any = false;
    for (int64_t i = 0; i < heads(); i += call.key_heads) any = any || !is_dense(i);
    if (!any) return true;
    const Sizes<T> sizes(call, (int)call.order);
    const int64_t size = round_up(sizes.features.size, 64);
    const bool reverse = pass == Pass::key_grads;
    Arena shared;
    shared.take<T>(heads() * (count + 1) * size);
    if (count > 1 && !shared.allocate_zeros()) return false;
    auto total_of = [&](int64_t i) { return (T*)shared.base + i * (count + 1) * size; };
    auto state_of = [&](int64_t i, int64_t part) { return total_of(i) + (1 + part) * size; };
    auto tokens = [&](const Head& h, bool summed) {
      if (call.is_causal) return most(h.queries, h.keys);
      return (pass == Pass::key_grads) == summed ? h.queries : h.keys;
    };
    const int64_t bundle = count > 1 ? 1 : bundled(size), bundles = (call.key_heads + bundle - 1) / bundle;
    struct Mine {
      Factorized<T> work;
      T* state;
    };
    auto setup = [&](std::atomic<bool>& failed, const auto& run) {
      Arena arena;
      Mine mine{Factorized<T>(sizes, pass), nullptr};
      for (int i = 0; i < 2; i++) {
        mine.work.take(arena);
        mine.state = arena.take<T>(count > 1 ? 0 : bundle * size);
        if (i == 0 && !arena.allocate()) {
          failed = true;
          return;
        }
      }
      run(mine);
    };
    auto start = [&](const Head& h, T* state) {
      if (from)
        state_from_public(sizes.features, (const T*)from + (h.state * call.key_heads + h.key_head) * state_size(), state);
      else
        memset(state, 0, size * sizeof(T));
    };
    auto finish = [&](const Head& h, const T* state) {
      if (to) state_to_public(sizes.features, state, (T*)to + (h.state * call.key_heads + h.key_head) * state_size());
    };
    // f(begin, end, first, last) for the chunks of a segment, in the order of the walk.
    auto each_chunk = [&](int64_t all, int64_t part, const auto& f) {
      int64_t begin, end;
      segment(all, part, count, sizes.chunk, begin, end);
      const int64_t chunks = (end - begin + sizes.chunk - 1) / sizes.chunk;
      for (int64_t n = 0; n < chunks; n++) {
        const int64_t a = begin + (reverse ? chunks - 1 - n : n) * sizes.chunk;
        f(a, least(end, a + sizes.chunk), n == 0, n == chunks - 1);
      }
    };
    // One chunk of the segment `part` of head i.
    auto use = [&](Mine& mine, int64_t i, int64_t part, int64_t a, int64_t b, T* state, bool empty, bool keep) {
      mine.work.d_scale = d_scale ? d_scale + (i * count + part) * groups : nullptr;
      if (call.is_causal)
        mine.work.walk(head(i), a, b, state, empty, keep);
      else
        mine.work.use(head(i), a, b, state);
    };

    if (count == 1)
      return spread(pool, states() * bundles, setup, [&](Mine& mine, int64_t item) {
        const int64_t first = item / bundles * call.key_heads + item % bundles * bundle;
        const int64_t heads = least(bundle, (item / bundles + 1) * call.key_heads - first);
        if (is_dense(first)) return;
        const Head h = head(first);
        auto each_head = [&](const auto& f) {
          for (int64_t n = 0; n < heads; n++) f(first + n, mine.state + n * size);
        };
        each_head([&](int64_t i, T* state) { start(head(i), state); });
        if (!call.is_causal) {
          each_chunk(tokens(h, true), 0, [&](int64_t a, int64_t b, bool, bool) {
            each_head([&](int64_t i, T* state) { mine.work.add(head(i), a, b, state); });
          });
          each_head([&](int64_t i, T* state) { finish(head(i), state); });
        }
        each_chunk(tokens(h, false), 0, [&](int64_t a, int64_t b, bool is_first, bool is_last) {
          each_head([&](int64_t i, T* state) { use(mine, i, 0, a, b, state, !from && is_first, to || !is_last); });
        });
        if (call.is_causal) each_head([&](int64_t i, T* state) { finish(head(i), state); });
      });

    const bool summed = spread(pool, heads() * count, setup, [&](Mine& mine, int64_t item) {
      const int64_t i = item / count, part = item % count;
      if (is_dense(i) || (call.is_causal && part == (reverse ? 0 : count - 1))) return;
      each_chunk(tokens(head(i), true), part, [&](int64_t a, int64_t b, bool, bool) {
        mine.work.add(head(i), a, b, state_of(i, part));
      });
    });
    if (!summed) return false;
    auto nothing = [](std::atomic<bool>&, const auto& run) {
      int none = 0;
      run(none);
    };
    spread(pool, heads(), nothing, [&](int&, int64_t i) {
      if (is_dense(i)) return;
      start(head(i), total_of(i));
      combine(total_of(i), state_of(i, 0), size, count, reverse);
      if (!call.is_causal) finish(head(i), total_of(i));
    });
    return spread(pool, heads() * count, setup, [&](Mine& mine, int64_t item) {
      const int64_t i = item / count, part = item % count;
      if (is_dense(i)) return;
      const bool nothing_before = !from && part == (reverse ? count - 1 : 0), last = part == (reverse ? 0 : count - 1);
      T* state = call.is_causal ? state_of(i, part) : total_of(i);
      each_chunk(tokens(head(i), false), part, [&](int64_t a, int64_t b, bool is_first, bool is_last) {
        use(mine, i, part, a, b, state, nothing_before && is_first, (to && last) || !is_last);
      });
      if (call.is_causal && last) finish(head(i), state);
    });
  }

  // Adds up the sums of segments. When causal, each segment's becomes what came before it.
  void combine(T* total, T* states, int64_t size, int64_t count, bool reverse) const {
    for (int64_t n = 0; n < count; n++) {
      T* s = states + (reverse ? count - 1 - n : n) * size;
      for (int64_t e = 0; e < size; e++) {
        const T before = total[e];
        total[e] += s[e];
        if (call.is_causal) s[e] = before;
      }
    }
  }

  bool dense(bool grads, double* d_scale) {
    const int64_t count = segments(), groups = call.query_heads / call.key_heads;
    int64_t most_keys = 0;
    for (int64_t i = 0; i < heads(); i += call.key_heads)
      if (is_dense(i)) most_keys = most(most_keys, head(i).keys);
    bool any = false;
    for (int64_t i = 0; i < heads(); i += call.key_heads) any = any || is_dense(i);
    if (!any) return true;
    const Sizes<T> sizes(call, 1);
    const int64_t x_size = most_keys * sizes.dim_pitch, u_size = most_keys * sizes.u_pitch;
    Arena shared;
    shared.take<T>(heads() * count * (x_size + u_size));
    if (grads && count > 1 && !shared.allocate_zeros()) return false;
    struct Mine {
      Whole<T> work;
      T *d_x, *d_u;
    };
    auto setup = [&](std::atomic<bool>& failed, const auto& run) {
      Arena arena;
      Mine mine{Whole<T>(sizes, grads), nullptr, nullptr};
      for (int i = 0; i < 2; i++) {
        mine.work.take(arena, most_keys);
        if (grads) mine.d_x = arena.take<T>(x_size), mine.d_u = arena.take<T>(u_size);
        if (i == 0 && !arena.allocate()) {
          failed = true;
          return;
        }
      }
      run(mine);
    };
    const bool done = spread(pool, heads() * count, setup, [&](Mine& mine, int64_t item) {
      const int64_t i = item / count, part = item % count;
      if (!is_dense(i)) return;
      const Head h = head(i);
      int64_t begin, end;
      segment(h.queries, part, count, Whole<T>::QUERIES, begin, end);
      mine.work.load_keys(h);
      if (!grads) return mine.work.outputs(h, begin, end);
      T *d_x = mine.d_x, *d_u = mine.d_u;
      if (count > 1) {
        d_x = (T*)shared.base + item * (x_size + u_size), d_u = d_x + x_size;
      } else {
        memset(d_x, 0, x_size * sizeof(T));
        memset(d_u, 0, u_size * sizeof(T));
      }
      mine.work.gradients(h, begin, end, d_x, d_u, d_scale + item * groups);
      if (count == 1) mine.work.keys.store_grads(h, d_x, sizes.dim_pitch, d_u, sizes.u_pitch);
    });
    if (!done || !grads || count == 1) return done;
    return spread(pool, heads(), setup, [&](Mine& mine, int64_t i) {
      if (!is_dense(i)) return;
      const Head h = head(i);
      T* total = (T*)shared.base + i * count * (x_size + u_size);
      for (int64_t part = 1; part < count; part++)
        for (int64_t e = 0; e < x_size + u_size; e++) total[e] += total[part * (x_size + u_size) + e];
      mine.work.load_keys(h);
      mine.work.keys.store_grads(h, total, sizes.dim_pitch, total + x_size, sizes.u_pitch);
    });
  }
};

}  // namespace FM_LEVEL
