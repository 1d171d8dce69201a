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

#include <vector>

#include "runtime/cpu_pool.hpp"
#include "runtime/sim/sim_world.hpp"

namespace tandem {

class SimPool final : public PoolDriver {
 public:
  struct Options {
    int threads = 1;
    Duration chunk_time = std::chrono::microseconds(20);  // on average
  };
  SimPool(SimWorld& world, std::uint32_t rank, Options options);

  void work_there(CpuPool& pool) override;

 private:
  struct Worker {
    CpuPool::Worker turns;
    bool busy = false;
    bool joined = false;
  };
  void next_turn(std::size_t worker);
  void turn(std::size_t worker);

  SimWorld& world_;
  std::uint32_t rank_;
  Options options_;
  Random random_;
  std::vector<Worker> workers_;
};

}  // namespace tandem
