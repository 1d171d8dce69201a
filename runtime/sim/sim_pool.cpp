#include "runtime/sim/sim_pool.hpp"

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

std::exception_ptr failed_chunk() {
  return std::make_exception_ptr(failure(ExitCode::kFailure, "pool", "a chunk failed"));
}

}  // namespace

SimPool::SimPool(SimWorld& world, std::uint32_t rank, Options options)
    : world_(world), rank_(rank), options_(options), random_(world.random().fork(rank)) {}

void SimPool::work_there(CpuPool& pool) {
  while (static_cast<int>(workers_.size()) < options_.threads) {
    workers_.push_back({CpuPool::Worker(pool)});
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (!workers_[i].busy) {
      workers_[i].busy = true;
      next_turn(i, Duration(0));
    }
  }
}

void SimPool::next_turn(std::size_t worker, Duration exact) {
  const Duration drawn(options_.draws_times ? random_.between(1, 2 * options_.chunk_time.count())
                                            : 0);
  world_.after(options_.draws_times ? drawn : exact, rank_, [this, worker] { turn(worker); });
}

// Joins a job, or runs a chunk, or leaves when there is none left.
void SimPool::turn(std::size_t index) {
  Worker& worker = workers_[index];
  Duration exact{};
  if (!worker.joined) {
    worker.joined = worker.turns.join();
    worker.busy = worker.joined;
  } else if (worker.turns.run_chunk(chunks_ == fail_chunk_ ? failed_chunk() : nullptr)) {
    ++chunks_;
    exact = options_.chunk_time;
  } else {
    worker.turns.leave();
    worker.joined = false;
  }
  if (worker.busy) {
    next_turn(index, exact);
  }
}

}  // namespace tandem
