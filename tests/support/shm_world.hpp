// tests/support/shm_world.hpp — the ranks of a test over shared memory: as threads of this process,
// or as processes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <sys/random.h>

#include "actors/collectives/shm/shm_backend.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"

namespace tandem::testing {

inline std::string random_job() {
  std::uint64_t words[2] = {};
  (void)::getrandom(words, sizeof(words), 0);
  return fmt::format("{:016x}{:016x}", words[0], words[1]);
}

/// One rank: its loop, pool and back end.
struct ShmRank {
  EventLoop loop;
  CpuPool pool;
  std::unique_ptr<ShmBackend> backend;

  explicit ShmRank(ShmBackend::Options options, Spin spin = Spin::kAuto)
      : loop({.name = fmt::format("rank {}", options.rank), .spin = spin}),
        pool(loop, {.threads = 2}) {
    if (options.arena_bytes == 0) {
      options.arena_bytes = std::size_t{256} << 20;
    }
    backend = ShmBackend::connect(loop, pool, options);
  }
};

/// Runs body(rank) on a thread of its own for each rank; returns what each threw, "" if nothing.
inline std::vector<std::string> run_ranks(std::uint32_t world,
                                          const std::function<void(ShmRank&)>& body,
                                          ShmBackend::Options options = {},
                                          Spin spin = Spin::kAuto) {
  std::vector<std::string> errors(world);
  std::vector<std::thread> threads;
  if (options.job.empty()) {
    options.job = random_job();
  }
  options.world = world;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    options.rank = rank;
    threads.emplace_back([options, spin, &body, &errors] {
      try {
        ShmRank made(options, spin);
        body(made);
      } catch (const std::exception& error) {
        errors[options.rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

}  // namespace tandem::testing
