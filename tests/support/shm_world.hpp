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
#include <gtest/gtest.h>
#include <sys/random.h>
#include <unistd.h>

#include "actors/collectives/shm/shm_backend.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/collective_operations.hpp"

namespace tandem::test {

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

/// Operands in the rank's arena.
inline Operands operands_of(ShmRank& rank) {
  return {rank.backend->allocate(Operands::kBytes), rank.backend->allocate(Operands::kBytes)};
}

/// Operation `kind` of tests/support/collective_operations.hpp, to its end.
inline void run(ShmRank& rank, const Operands& operands, std::size_t kind, int times) {
  rank.loop.run(&operate, rank.backend.get(), operands, kind, times);
}

/// A rank that is a process; `body` runs there.
class RankProcess : public ChildProcess {
 public:
  RankProcess(const ShmBackend::Options& options,
              const std::function<void(ShmRank&, int pipe)>& body)
      : ChildProcess([&](int pipe) {
          ShmRank rank(options);
          body(rank, pipe);
        }) {}
};

}  // namespace tandem::test
