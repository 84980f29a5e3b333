// Items of work spread over torch's threads.
#pragma once
#include <atomic>

#include "api.h"
#include "simd/denormals.h"
#include "simd/vec.h"

namespace FM_LEVEL {

// task.run(worker, i) for every i < items. Each thread makes one Task::Worker, allocates what it works with, and takes the
// next item until none is left. Denormals are zeros meanwhile. False if a worker found no memory.
template <class Task>
bool run_parallel(const FmPool& pool, int64_t items, const Task& task) {
  struct Shared {
    const Task& task;
    int64_t items;
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
  } shared{task, items};
  const FmRange work = [](int64_t, int64_t, void* context) {
    Shared& s = *(Shared*)context;
    if (s.next.load() >= s.items) return;
    const FlushDenormals flush;
    typename Task::Worker worker(s.task);
    if (!worker.allocate()) {
      s.failed = true;
      return;
    }
    for (int64_t i; (i = s.next.fetch_add(1)) < s.items;) s.task.run(worker, i);
  };
  const int64_t threads = min(items, pool.threads);
  if (threads <= 1 || !pool.parallel_for)
    work(0, 1, &shared);
  else
    pool.parallel_for(0, threads, 1, work, &shared);
  return !shared.failed;
}

// Two tasks as one: the items of the first, then those of the second, so that no thread waits in between.
template <class First, class Second>
struct Together {
  const First& first;
  int64_t first_items;
  const Second& second;

  struct Worker {
    typename First::Worker first;
    typename Second::Worker second;
    explicit Worker(const Together& task) : first(task.first), second(task.second) {}
    bool allocate() { return first.allocate() && second.allocate(); }
  };
  void run(Worker& worker, int64_t i) const {
    if (i < first_items)
      first.run(worker.first, i);
    else
      second.run(worker.second, i - first_items);
  }
};

// The same for items that every call repeats. A thread takes the same items each time, because their data are in its cache;
// from another core they may be five times as far away.
template <class Task>
bool run_shares(const FmPool& pool, int64_t items, const Task& task) {
  struct Shared {
    const Task& task;
    int64_t items, shares;
    std::atomic<bool> failed{false};
  } shared{task, items, max(1, min(items, pool.threads))};
  const FmRange work = [](int64_t begin, int64_t end, void* context) {
    Shared& s = *(Shared*)context;
    const FlushDenormals flush;
    typename Task::Worker worker(s.task);
    if (!worker.allocate()) {
      s.failed = true;
      return;
    }
    for (int64_t i = begin * s.items / s.shares; i < end * s.items / s.shares; i++) s.task.run(worker, i);
  };
  if (shared.shares == 1 || !pool.parallel_for)
    work(0, shared.shares, &shared);
  else
    pool.parallel_for(0, shared.shares, 1, work, &shared);
  return !shared.failed;
}

}  // namespace FM_LEVEL
