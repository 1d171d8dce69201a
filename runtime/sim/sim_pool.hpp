// runtime/sim/sim_pool.hpp — the threads of a CpuPool in a simulated world: its chunks run in
// virtual time.
//
// Each worker takes the next chunk after a time drawn from the seed, so chunks of one job end in
// any order.
// It must live as long as its pool.
//
//   SimPool workers(world, rank, {.threads = 3});
//   CpuPool pool(world.loop(rank), {.threads = 3, .driver = &workers});
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/cpu_pool.hpp"
#include "runtime/sim/sim_world.hpp"

namespace tandem {

class SimPool final : public PoolDriver {
 public:
  struct Options {
    int threads = 1;
    Duration chunk_time = std::chrono::microseconds(20);  // on average
    // False: a chunk takes chunk_time, and nothing else takes any. Its work is then done at its
    // begin.
    bool draws_times = true;
  };
  SimPool(SimWorld& world, std::uint32_t rank, Options options);

  void work_there(CpuPool& pool) override;

  /// Makes the n-th chunk, counted from 0, throw instead of running.
  void fail_chunk(std::uint64_t n) noexcept { fail_chunk_ = n; }
  /// Returns the number of chunks that were taken so far.
  [[nodiscard]] std::uint64_t chunks() const noexcept { return chunks_; }

 private:
  struct Worker {
    CpuPool::Worker turns;
    bool busy = false;
    bool joined = false;
  };
  void next_turn(std::size_t worker, Duration exact);
  void turn(std::size_t worker);

  SimWorld& world_;
  std::uint32_t rank_;
  Options options_;
  Random random_;
  std::vector<Worker> workers_;
  std::uint64_t chunks_ = 0;
  std::uint64_t fail_chunk_ = UINT64_MAX;
};

}  // namespace tandem
