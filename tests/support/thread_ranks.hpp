// tests/support/thread_ranks.hpp — ranks as threads of one process, over the shared-memory back
// end: for tests, benchmarks, and for trying out what several ranks do without a launcher.
//
//   auto losses = on_ranks(2, [&](std::shared_ptr<Communicator> ranks) {
//     Engine engine({..., .communicator = ranks});  ...
//   });
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "actors/collectives/shm/shm_backend.hpp"
#include "engine/distributed/communicator.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

/// What rank 0 has told the others, in order.
struct FirstRanksWords {
  std::mutex mutex;
  std::condition_variable said;
  std::vector<std::string> all;
};

class ThreadRank final : public Communicator {
 public:
  ThreadRank(int rank, int world_size, std::string job, std::shared_ptr<FirstRanksWords> words)
      : rank_(rank), world_size_(world_size), job_(std::move(job)), words_(std::move(words)) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return world_size_; }
  void require_same(std::string_view /*what*/, std::string_view /*value*/) override {}
  [[nodiscard]] std::string of_first_rank(std::string value) override {
    std::unique_lock lock(words_->mutex);
    if (rank_ == 0) {
      words_->all.push_back(std::move(value));
      words_->said.notify_all();
    }
    const bool came = words_->said.wait_for(lock, std::chrono::seconds(60),
                                            [this] { return words_->all.size() > heard_; });
    TANDEM_CHECK(came, "rank 0 makes the same calls");
    return words_->all[heard_++];
  }
  std::unique_ptr<CollectiveBackend> make_backend(EventLoop& loop, CpuPool& pool) override {
    return connect(loop, pool, {.name = job_, .rank = rank_, .world_size = world_size_});
  }
  std::unique_ptr<CollectiveBackend> make_group_backend(EventLoop& loop, CpuPool& pool,
                                                        const RankGroup& group) override {
    RankGroup of_job = group;
    of_job.name = job_ + "-" + group.name;
    return connect(loop, pool, of_job);
  }

 private:
  static std::unique_ptr<CollectiveBackend> connect(EventLoop& loop, CpuPool& pool,
                                                    const RankGroup& group) {
    if (group.world_size == 1) {
      return std::make_unique<SelfBackend>(pool);
    }
    return ShmBackend::connect(loop, pool,
                               {.rank = static_cast<std::uint32_t>(group.rank),
                                .world = static_cast<std::uint32_t>(group.world_size),
                                .job = group.name,
                                .connect_timeout = std::chrono::seconds(60),
                                .timeout = std::chrono::seconds(60)});
  }

  int rank_;
  int world_size_;
  std::string job_;
  std::shared_ptr<FirstRanksWords> words_;
  std::size_t heard_ = 0;
};

/// Runs body(communicator) for every rank at once, each on a thread of its own; their results by
/// rank. Once all have ended, the failure of the lowest rank that failed is thrown on: of one that
/// did not fail because a peer had, if there is one.
template <class Body>
auto on_ranks(int world_size, Body body) {
  using Result = decltype(body(std::shared_ptr<Communicator>()));
  static std::atomic<int> runs{0};
  const std::string job = fmt::format("threads-{}-{}", ::getpid(), runs++);
  const auto world = static_cast<std::size_t>(world_size);
  const auto words = std::make_shared<FirstRanksWords>();
  std::vector<Result> results(world);
  std::vector<std::exception_ptr> witnesses(world);
  std::vector<std::exception_ptr> causes(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      try {
        results[at] = body(std::make_shared<ThreadRank>(rank, world_size, job, words));
      } catch (const Error& error) {
        (error.code() == ExitCode::kPeer ? witnesses : causes)[at] = std::current_exception();
      } catch (...) {
        causes[at] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  causes.insert(causes.end(), witnesses.begin(), witnesses.end());
  for (const std::exception_ptr& error : causes) {
    if (error != nullptr) {
      std::rethrow_exception(error);
    }
  }
  return results;
}

}  // namespace tandem
