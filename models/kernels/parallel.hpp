// models/kernels/parallel.hpp — loops over the team of threads that ATen itself uses.
//
// LibTorch brings its own OpenMP runtime, and our code is compiled without OpenMP: a pool of our
// own beside it would fight for the same cores. So this code finds the runtime in the process by
// name, and has it run our function on its team; if none is loaded, the loop runs serially.
// Invariant: a task's result depends on its index alone, never on the thread that ran it; wherever
// bits depend on the number of tasks, the caller chooses it without looking at the number of
// threads.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace tandem {

/// Threads that parallel_tasks() will use: at::get_num_threads(), or 1 inside a parallel region.
/// Compute lane.
int parallel_team_size();

namespace detail {
void run_tasks(std::int64_t count, void (*call)(void*, std::int64_t), void* context);
}

/// Calls task(i) for every i in [0, count), handed out one by one to whichever thread is free;
/// returns when all are done. Tasks must not throw. Compute lane; inside a task it runs serially.
template <class Task>
void parallel_tasks(std::int64_t count, Task&& task) {
  using Plain = std::remove_reference_t<Task>;
  detail::run_tasks(
      count, [](void* context, std::int64_t i) { (*static_cast<Plain*>(context))(i); },
      const_cast<void*>(static_cast<const void*>(std::addressof(task))));
}

/// Calls range(begin, end) for blocks of `block` elements of [0, count); block boundaries do not
/// depend on the threads.
template <class Range>
void parallel_blocks(std::int64_t count, std::int64_t block, Range&& range) {
  parallel_tasks((count + block - 1) / block, [&](std::int64_t i) {
    const std::int64_t begin = i * block;
    range(begin, begin + block < count ? begin + block : count);
  });
}

}  // namespace tandem
