// Messages between ranks of one host beside NCCL: decisions, the rank that is behind, the rank at
// fault; and the whole back end on it, ranks as threads on fakes of CUDA and NCCL.
#include "actors/collectives/nccl/shm_nccl_peers.hpp"

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/sleep.hpp"
#include "tests/support/nccl_training.hpp"
#include "tests/support/shm_world.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::FakeCuda;
using test::FakeNccl;
using test::NcclTrained;
using test::NcclTraining;
using ::testing::HasSubstr;

/// body(loop, peers) for each rank, on a thread of its own; what each threw.
std::vector<std::string> on_threads(
    std::uint32_t world,
    const std::function<void(EventLoop&, const std::shared_ptr<ShmNcclPeers>&, std::uint32_t)>&
        body,
    const std::function<void(ShmNcclPeers::Options&)>& change = [](ShmNcclPeers::Options&) {}) {
  const std::string job = test::random_job();
  std::vector<std::string> errors(world);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        EventLoop loop({.name = fmt::format("rank {}", rank)});
        ShmNcclPeers::Options options{.rank = rank, .world = world, .job = job};
        change(options);
        const std::shared_ptr<ShmNcclPeers> peers = ShmNcclPeers::connect(loop, options);
        body(loop, peers, rank);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

/// Polls until there is one; the reactor, which hears of it, gets its turns meanwhile.
Task<> wait_for_loss(NcclPeers* peers, NcclLoss* found) {
  for (std::optional<NcclLoss> loss; !loss;) {
    loss = peers->loss();
    if (loss) {
      *found = *loss;
    }
    co_await sleep_for(1ms);
  }
}

Task<> decide_turns(NcclPeers* peers, std::uint64_t turns) {
  for (std::uint64_t turn = 0; turn < turns; ++turn) {
    while (turn >= NcclPeers::kMostAhead && peers->behind(turn - NcclPeers::kMostAhead + 1)) {
      co_await sleep_for(Duration(0));
    }
    NcclLaunch launch{.comm = static_cast<std::uint32_t>(turn * turn % 7 % 2), .operation = {}};
    launch.operation.number = turn * 3;
    peers->decide(turn, launch);
    peers->has_begun(turn + 1);
  }
}

Task<> follow_turns(NcclPeers* peers, std::uint64_t turns) {
  for (std::uint64_t turn = 0; turn < turns; ++turn) {
    std::optional<NcclLaunch> launch;
    while (!(launch = peers->decided(turn))) {
      co_await sleep_for(Duration(0));
    }
    EXPECT_EQ(launch->comm, turn * turn % 7 % 2);
    EXPECT_EQ(launch->operation.number, turn * 3);
    peers->has_begun(turn + 1);
  }
}

// Many rounds of the ring: a decision is not overwritten before everybody has seen it.
TEST(ShmNcclPeers, EverybodyFollowsRank0) {
  const auto errors = on_threads(3, [](EventLoop& loop, const auto& peers, std::uint32_t rank) {
    loop.run(rank == 0 ? &decide_turns : &follow_turns, static_cast<NcclPeers*>(peers.get()),
             std::uint64_t{5000});
    loop.run(
        [](NcclPeers* p) -> Task<> {
          while (p->behind(5000)) {
            co_await sleep_for(Duration(0));
          }
        },
        static_cast<NcclPeers*>(peers.get()));
    EXPECT_FALSE(peers->behind(5000));
    EXPECT_EQ(peers->behind(5001), 0U);
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

TEST(ShmNcclPeers, WhoGivesUpIsHeardByAll) {
  const auto errors = on_threads(3, [](EventLoop& loop, const auto& peers, std::uint32_t rank) {
    if (rank == 1) {
      peers->announce_failure(1, "rank 1 aborted: no more");
    }
    NcclLoss loss;
    loop.run(&wait_for_loss, peers.get(), &loss);
    EXPECT_EQ(loss.failed_rank, 1U);
    EXPECT_EQ(loss.cause, "rank 1 aborted: no more");
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

TEST(ShmNcclPeers, WhoLeavesIsMissedOnlyByThoseThatNeedIt) {
  const auto errors = on_threads(2, [](EventLoop& loop, const auto& peers, std::uint32_t rank) {
    peers->has_begun(7);
    if (rank == 1) {
      return;
    }
    EXPECT_FALSE(peers->loss());
    peers->has_begun(8);
    NcclLoss loss;
    loop.run(&wait_for_loss, peers.get(), &loss);
    EXPECT_EQ(loss.failed_rank, 1U);
    EXPECT_EQ(loss.cause, "rank 1 has left");
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

Awaited only(std::uint32_t rank) {
  Awaited awaited;
  awaited.add(rank);
  return awaited;
}

/// Runs the loop, which then sends heartbeats, until `done`.
Task<> run_until(const std::function<bool()>* done) {
  while (!(*done)()) {
    co_await sleep_for(1ms);
  }
}

TEST(ShmNcclPeers, WhoIsWaitedForIsNotAtFaultWhereItWaitsForAnother) {
  std::atomic<bool> found{false};
  const auto errors = on_threads(
      3,
      [&found](EventLoop& loop, const auto& peers, std::uint32_t rank) {
        if (rank == 1) {
          peers->ask_for_waits([](Duration at_least) {
            EXPECT_EQ(at_least, 20ms) << "a younger wait holds up no rank";
            return only(2);
          });
        }
        const std::function<bool()> done = [&] {
          found = found || (rank == 0 && peers->failed_behind(1).failed_rank == 2);
          return found.load();
        };
        loop.run(&run_until, &done);
        if (rank == 0) {
          EXPECT_THAT(peers->failed_behind(1).cause, HasSubstr("waits for rank 2 in the end"));
          EXPECT_EQ(peers->failed_behind(2).failed_rank, 2U);
        }
        peers->ask_for_waits(nullptr);
      },
      [](ShmNcclPeers::Options& options) { options.heartbeat = 20ms; });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

// Ranks 1 and 3 of a run, in a group.
TEST(ShmNcclPeers, AGroupsWaitsAreTheRuns) {
  const std::array runs = {std::make_shared<RunWaits>(), std::make_shared<RunWaits>()};
  std::atomic<int> ready{0};
  const auto errors = on_threads(
      2,
      [&](EventLoop& loop, const auto& peers, std::uint32_t rank) {
        RunWaits& run = *runs[rank];
        peers->ask_for_waits([](Duration) { return only(1); });
        const std::function<bool()> said = [&] {
          return run.in_groups().packed() == only(3).packed();
        };
        loop.run(&run_until, &said);
        std::vector<Awaited> known(4);
        known[3] = only(0);
        run.know(known);
        const NcclLoss behind = peers->failed_behind(1);
        ++ready;
        const std::function<bool()> all_said = [&] { return ready == 2; };
        loop.run(&run_until, &all_said);
        if (rank == 0) {  // it waits for a rank that the group does not have
          EXPECT_EQ(behind.failed_rank, 2U) << "the number of rank 0 behind the members'";
          run.fail(0, "the run is broken");
        }
        const std::function<bool()> broken = [&] { return peers->loss().has_value(); };
        loop.run(&run_until, &broken);
        EXPECT_EQ(peers->loss()->cause, "the run is broken");
        peers->ask_for_waits(nullptr);
      },
      [&runs](ShmNcclPeers::Options& options) {
        options.heartbeat = 20ms;
        options.outside_ranks = 4;
        options.group_waits =
            std::make_shared<GroupWaits>(runs[options.rank], std::vector<std::uint32_t>{1, 3});
      });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(ShmNcclPeers, AProcessThatDiesIsHeardOf) {
  const std::string job = test::random_job();
  const pid_t child = ::fork();
  if (child == 0) {
    EventLoop loop;
    const auto peers = ShmNcclPeers::connect(loop, {.rank = 1, .world = 2, .job = job});
    ::_exit(0);  // without a good-bye
  }
  EventLoop loop;
  const auto peers = ShmNcclPeers::connect(loop, {.rank = 0, .world = 2, .job = job});
  NcclLoss loss;
  loop.run(&wait_for_loss, peers.get(), &loss);
  EXPECT_EQ(loss.failed_rank, 1U);
  EXPECT_EQ(loss.cause, "rank 1 is gone: its process ended");
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
}

// ---- the whole back end ----
std::vector<NcclTrained> train_on_threads(const NcclTraining& training) {
  std::vector<NcclTrained> out(training.world);
  const auto errors =
      on_threads(training.world, [&](EventLoop& loop, const auto& peers, std::uint32_t r) {
        try {
          training.run(loop, r, peers, out[r]);
        } catch (const PeerLost& lost) {
          EXPECT_EQ(lost.rank(), 1U);
          out[r].error = lost.what();
        }
      });
  EXPECT_EQ(errors, std::vector<std::string>(training.world));
  return out;
}

TEST(ShmNcclPeers, CarryTheBackEnd) {
  const FakeCuda cuda(Clock::real());
  FakeNccl nccl;
  nccl.questions = 1;
  const std::vector<NcclTrained> got = train_on_threads({.world = 3});
  const test::Expected expected(3, DType::kF32, NcclTraining::kShard * 3, NcclTraining::kRounds);
  for (const NcclTrained& rank : got) {
    EXPECT_EQ(rank.sum, expected.sum);
  }
  EXPECT_EQ(nccl.launches(1), nccl.launches(0));
  EXPECT_EQ(nccl.launches(2), nccl.launches(0));
}

TEST(ShmNcclPeers, TellTheBackEndsWhoGaveUp) {
  const FakeCuda cuda(Clock::real());
  FakeNccl nccl;
  for (const NcclTrained& rank : train_on_threads({.world = 3, .gives_up = 1})) {
    EXPECT_THAT(rank.error, HasSubstr("rank 1 aborted: no more; "));
  }
  EXPECT_EQ(nccl.aborted(), 6);
}

}  // namespace
}  // namespace tandem
