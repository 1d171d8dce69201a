// Groups of a run's ranks, each rank with a loop for the run and one for its group on a thread of
// its own: who is at fault is named by its number in the run, also where the rank that is awaited
// in the group waits for one that the group does not have.
#include "actors/collectives/group_backend.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/io/net.hpp"
#include "runtime/sleep.hpp"
#include "tests/support/shm_world.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::random_job;
using test::ShmRank;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Duration kHeartbeat = 100ms;
constexpr Duration kLong = 60s;

struct Lost {
  std::uint32_t rank = UINT32_MAX - 1;
  std::string text;
};

/// One rank of three. Ranks 1 and 2 are a group.
struct Member {
  Member(std::uint32_t rank, const std::string& job, Duration group_timeout)
      : number(rank),
        run_waits(std::make_shared<RunWaits>()),
        run({.rank = rank,
             .world = 3,
             .job = job,
             .run_waits = run_waits,
             .timeout = kLong,
             .heartbeat = kHeartbeat}) {
    if (rank > 0) {
      waits = std::make_shared<GroupWaits>(run_waits, std::vector<std::uint32_t>{1, 2});
      group_rank = std::make_unique<ShmRank>(ShmBackend::Options{.rank = rank - 1,
                                                                 .world = 2,
                                                                 .job = job + "-group",
                                                                 .outside_ranks = 3,
                                                                 .group_waits = waits,
                                                                 .timeout = group_timeout,
                                                                 .heartbeat = kHeartbeat});
      group = std::make_unique<GroupBackend>(std::move(group_rank->backend), waits);
    }
  }

  static void exchange(EventLoop& loop, CollectiveBackend& backend) {
    loop.run([](CollectiveBackend* all) -> Task<> { return all->exchange({}); }, &backend);
  }
  /// Returns the loss with which an exchange of the run, or of the group, ends.
  [[nodiscard]] std::optional<Lost> lost_in_run() { return lost(run.loop, *run.backend); }
  [[nodiscard]] std::optional<Lost> lost_in_group() { return lost(group_rank->loop, *group); }
  /// Keeps the run's loop going until `over` is true, without a wait for any rank.
  void idle_until(const std::atomic<bool>& over) {
    run.loop.run(
        +[](const std::atomic<bool>* until) -> Task<> {
          while (!*until) {
            co_await sleep_for(10ms);
          }
        },
        &over);
  }

  std::uint32_t number;
  std::shared_ptr<RunWaits> run_waits;
  ShmRank run;
  std::shared_ptr<GroupWaits> waits;
  std::unique_ptr<ShmRank> group_rank;
  std::unique_ptr<GroupBackend> group;

 private:
  static std::optional<Lost> lost(EventLoop& loop, CollectiveBackend& backend) {
    try {
      exchange(loop, backend);
    } catch (const PeerLost& lost) {
      return Lost{lost.rank(), lost.what()};
    }
    return std::nullopt;
  }
};

/// body(member) on a thread for each rank.
void on_members(Duration group_timeout, const std::function<void(Member&)>& body) {
  const std::string job = random_job();
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Member member(rank, job, group_timeout);
      body(member);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// Rank 1 waits in the group for rank 2, which waits in the run for rank 0, which hangs.
TEST(GroupBackend, ADeadlineFollowsWaitsIntoOtherGroups) {
  std::atomic<bool> over = false;
  std::optional<Lost> in_group, in_run;
  on_members(1s, [&](Member& member) {
    if (member.number == 0) {
      member.idle_until(over);
    } else if (member.number == 2) {
      in_run = member.lost_in_run();
    } else {
      std::thread lane([&] { in_group = member.lost_in_group(); });
      std::thread ends([&] {
        lane.join();
        over = true;
      });
      member.idle_until(over);
      ends.join();
      member.run.backend->fail(in_group ? in_group->rank : 1, "given up");
    }
  });
  ASSERT_TRUE(in_group && in_run);
  EXPECT_EQ(in_group->rank, 0U) << in_group->text;
  EXPECT_EQ(in_run->rank, 0U) << in_run->text;
  EXPECT_THAT(in_group->text, HasSubstr("rank 0 is at fault, 2 as the group of the ranks 1, 2"));
  EXPECT_THAT(in_group->text, HasSubstr("rank 1 did not arrive"));
}

/// For whom rank 1 waits, as rank 2 knows: once it is one, or none.
Awaited awaited_of_rank_1(Member& member, bool any) {
  Awaited awaited;
  for (int i = 0; i < 500; ++i) {
    awaited = member.run.backend->awaited(1);
    if ((awaited.word(0) != 0) == any) {
      break;
    }
    member.run.loop.run(+[]() -> Task<> { co_await sleep_for(20ms); });
  }
  return awaited;
}

TEST(GroupBackend, WaitsInAGroupAreSaidInTheRun) {
  std::atomic<bool> over = false;
  Awaited said, later;
  on_members(kLong, [&](Member& member) {
    if (member.number == 1) {
      std::optional<Lost> lost;
      std::thread lane([&] { lost = member.lost_in_group(); });
      member.idle_until(over);
      lane.join();
      EXPECT_FALSE(lost.has_value());
    } else if (member.number == 2) {
      said = awaited_of_rank_1(member, true);
      EXPECT_FALSE(member.lost_in_group().has_value());
      later = awaited_of_rank_1(member, false);
      over = true;
    } else {
      member.idle_until(over);
    }
  });
  EXPECT_EQ(said.word(0), 3U) << "rank 2";
  EXPECT_EQ(later.word(0), 0U);
}

TEST(GroupBackend, WhatEndsTheRunEndsWaitsInGroups) {
  std::optional<Lost> in_group;
  std::atomic<bool> over = false;
  on_members(kLong, [&](Member& member) {
    if (member.number == 1) {
      std::thread lane([&] {
        in_group = member.lost_in_group();
        over = true;
      });
      member.idle_until(over);
      lane.join();
      return;
    }
    if (member.number == 0) {
      std::this_thread::sleep_for(200ms);
      member.run.backend->abort("its disk is full");
    }
    member.idle_until(over);
  });
  ASSERT_TRUE(in_group);
  EXPECT_EQ(in_group->rank, 0U) << in_group->text;
  EXPECT_THAT(in_group->text, HasSubstr("its disk is full"));
}

TEST(GroupBackend, ARankThatIsNotKnownHasNoNumber) {
  std::optional<Lost> in_group;
  on_members(kLong, [&](Member& member) {
    if (member.number == 2) {
      member.group->fail(kUnknownRank, "NCCL says nothing");
      std::this_thread::sleep_for(200ms);
    } else if (member.number == 1) {
      in_group = member.lost_in_group();
    }
  });
  ASSERT_TRUE(in_group);
  EXPECT_EQ(in_group->rank, kUnknownRank);
  EXPECT_THAT(in_group->text, HasSubstr("the group of the ranks 1, 2 cannot go on"));
  EXPECT_THAT(in_group->text, HasSubstr("NCCL says nothing"));
  EXPECT_THAT(in_group->text, Not(HasSubstr("42949672")));
}

}  // namespace
}  // namespace tandem
