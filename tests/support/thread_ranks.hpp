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

#include "actors/collectives/group_backend.hpp"
#include "actors/collectives/shm/shm_backend.hpp"
#include "engine/distributed/communicator.hpp"
#include "engine/distributed/group_members.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

/// The texts that the ranks have given each other, in order.
struct RanksWords {
  std::mutex mutex;
  std::condition_variable said;
  std::vector<std::vector<std::string>> all;  // [question][rank]
  std::vector<int> missing;                   // [question] that have not said theirs
};

class ThreadRank final : public Communicator {
 public:
  /// `hosts`: invented ones, by rank.
  ThreadRank(int rank, int world_size, std::string job, std::shared_ptr<RanksWords> words,
             std::vector<std::string> hosts)
      : rank_(rank),
        world_size_(world_size),
        job_(std::move(job)),
        words_(std::move(words)),
        hosts_(std::move(hosts)) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return world_size_; }
  void require_same(std::string_view /*what*/, std::string_view /*value*/) override {}
  [[nodiscard]] std::vector<std::string> of_all_ranks(std::string value) override {
    std::unique_lock lock(words_->mutex);
    const std::size_t question = asked_++;
    if (words_->all.size() == question) {
      words_->all.emplace_back(static_cast<std::size_t>(world_size_));
      words_->missing.push_back(world_size_);
    }
    words_->all[question][static_cast<std::size_t>(rank_)] = std::move(value);
    --words_->missing[question];
    words_->said.notify_all();
    const bool came = words_->said.wait_for(lock, std::chrono::seconds(60),
                                            [&] { return words_->missing[question] == 0; });
    TANDEM_CHECK(came, "all ranks make the same calls");
    return words_->all[question];
  }
  [[nodiscard]] std::vector<std::string> hosts() const override { return hosts_; }
  std::unique_ptr<CollectiveBackend> make_backend(EventLoop& loop, CpuPool& pool) override {
    return connect(loop, pool, {.name = job_, .rank = rank_, .world_size = world_size_}, run_waits_,
                   nullptr);
  }
  std::unique_ptr<CollectiveBackend> make_group_backend(EventLoop& loop, CpuPool& pool,
                                                        const RankGroup& group) override {
    RankGroup of_job = group;
    of_job.name = job_ + "-" + group.name;
    const std::vector<int> members = members_of(*this, group);
    auto waits = std::make_shared<GroupWaits>(
        run_waits_, std::vector<std::uint32_t>(members.begin(), members.end()));
    return std::make_unique<GroupBackend>(connect(loop, pool, of_job, nullptr, waits), waits);
  }

 private:
  std::unique_ptr<CollectiveBackend> connect(EventLoop& loop, CpuPool& pool, const RankGroup& group,
                                             std::shared_ptr<RunWaits> run_waits,
                                             std::shared_ptr<GroupWaits> group_waits) const {
    if (group.world_size == 1) {
      return std::make_unique<SelfBackend>(pool);
    }
    return ShmBackend::connect(
        loop, pool,
        {.rank = static_cast<std::uint32_t>(group.rank),
         .world = static_cast<std::uint32_t>(group.world_size),
         .job = group.name,
         .outside_ranks = group_waits ? static_cast<std::uint32_t>(world_size_) : 0,
         .run_waits = std::move(run_waits),
         .group_waits = std::move(group_waits),
         .connect_timeout = std::chrono::seconds(60),
         .timeout = std::chrono::seconds(60)});
  }

  int rank_;
  int world_size_;
  std::string job_;
  std::shared_ptr<RanksWords> words_;
  std::vector<std::string> hosts_;
  std::shared_ptr<RunWaits> run_waits_ = std::make_shared<RunWaits>();
  std::size_t asked_ = 0;
};

/// Runs body(communicator) for every rank at once, each on a thread of its own; their results by
/// rank. Once all have ended, the failure of the lowest rank that failed is thrown on: of one that
/// did not fail because a peer had, if there is one. `hosts`: invented ones, by rank.
template <class Body>
auto on_ranks(int world_size, Body body, const std::vector<std::string>& hosts = {}) {
  using Result = decltype(body(std::shared_ptr<Communicator>()));
  static std::atomic<int> runs{0};
  const std::string job = fmt::format("threads-{}-{}", ::getpid(), runs++);
  const auto world = static_cast<std::size_t>(world_size);
  const auto words = std::make_shared<RanksWords>();
  std::vector<Result> results(world);
  std::vector<std::exception_ptr> witnesses(world);
  std::vector<std::exception_ptr> causes(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      try {
        results[at] = body(std::make_shared<ThreadRank>(rank, world_size, job, words, hosts));
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
