// Deadlines of waits for other hosts, in the simulator: whichever rank does not take part, all
// others end in time and name that one; who is late, or behind a link that comes back in time, ends
// no run.
#include "actors/collectives/hosts/net_waits.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/collectives/hosts/hosts_backend.hpp"
#include "runtime/scope.hpp"
#include "runtime/sim/sim_net.hpp"
#include "runtime/sim/sim_pool.hpp"
#include "runtime/sleep.hpp"
#include "tests/support/sim_host.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr Duration kTimeout = 2s;
constexpr Duration kHeartbeat = 250ms;
constexpr Duration kForEver = 60s;
constexpr std::uint32_t kRounds = 6;
constexpr std::size_t kShard = 3 * kNormTile;

enum class Fault { kNone, kHangs, kIsStopped, kIsLate };

struct Rank {
  Rank(SimWorld& world, SimNet& links, SimHost& host, std::uint32_t number, const HostShape& shape)
      : workers(world, number, {.threads = 2}),
        pool(world.loop(number), {.threads = 2, .driver = &workers}),
        net(links.attach(number)),
        local(host.attach(number, pool)),
        backend(
            *local, net, pool,
            {.piece_bytes = kNormTile * sizeof(float),
             .waits = {.timeout = kTimeout, .heartbeat = kHeartbeat, .host_names = names(shape)}}),
        scope(world.loop(number), Name("rank")) {}
  static std::vector<std::string> names(const HostShape& shape) {
    std::vector<std::string> all;
    all.reserve(shape.hosts);
    for (std::uint32_t host = 0; host < shape.hosts; ++host) {
      all.push_back(fmt::format("host-{}", host));
    }
    return all;
  }

  SimPool workers;
  CpuPool pool;
  Net net;
  std::unique_ptr<HostLevel> local;
  HostsBackend backend;
  Scope scope;
  Fault fault = Fault::kNone;
  std::uint32_t fault_at = 0;  // a round
  std::optional<std::uint32_t> blames;
  std::string failure;
  TimePoint ended_at;
};

Task<> train(Rank* self, SimWorld* world) {
  const std::uint32_t ranks = self->backend.world();
  std::vector<float> block(ranks * kShard, 1.0F), sum(kShard);
  const auto* mine = reinterpret_cast<const std::byte*>(sum.data());
  auto* all = reinterpret_cast<std::byte*>(block.data());
  try {
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      if (round == self->fault_at && self->fault == Fault::kHangs) {
        co_await sleep_for(kForEver);
        co_return;
      }
      if (round == self->fault_at && self->fault == Fault::kIsStopped) {
        world->after(Duration(0), self->backend.rank(),
                     [=] { world->pause(self->backend.rank(), kForEver); });
        co_await sleep_for(10us);  // it gets there afterwards
      }
      if (round == self->fault_at && self->fault == Fault::kIsLate) {
        co_await sleep_for(kTimeout * 3 / 4);
      }
      switch (round % 3) {
        case 0:
          co_await self->backend.all_gather({mine, all, kShard * sizeof(float)});
          break;
        case 1:
          (void)co_await self->backend.reduce_scatter_add({.block = all,
                                                           .accumulator = sum.data(),
                                                           .shard_elements = kShard,
                                                           .mode = AccumulateMode::kAdd});
          break;
        default:
          co_await self->backend.exchange({mine, all, 64});
      }
    }
  } catch (const PeerLost& lost) {
    self->blames = lost.rank();
    self->failure = lost.what();
    self->backend.fail(lost.rank(), lost.what());
  }
  self->ended_at = EventLoop::current().now();
}

struct Ranks {
  Ranks(std::uint64_t seed, const HostShape& form)
      : shape(form), world({.seed = seed, .ranks = form.ranks()}), links(world, {.latency = 20us}) {
    for (std::uint32_t number = 0; number < form.ranks(); ++number) {
      if (number % form.per_host == 0) {
        hosts.push_back(std::make_unique<SimHost>(
            world, number, form.per_host,
            SimHost::Options{.timeout = kTimeout, .silent_after = 3 * kHeartbeat}));
      }
      ranks.push_back(std::make_unique<Rank>(world, links, *hosts.back(), number, form));
    }
  }
  void run() {
    for (const auto& rank : ranks) {
      rank->scope.spawn("train", &train, rank.get(), &world);
    }
    const auto end = world.run([&] {
      return std::ranges::all_of(ranks, [](const auto& r) { return r->scope.running() == 0; });
    });
    ASSERT_EQ(end, SimWorld::End::kDone);
    for (const auto& rank : ranks) {
      EXPECT_TRUE(rank->scope.failures().empty());
    }
  }
  /// Nothing passes from one host to another, in both directions or in one.
  void clog(std::uint32_t from, std::uint32_t to, Duration duration) {
    for (std::uint32_t a = 0; a < shape.per_host; ++a) {
      for (std::uint32_t b = 0; b < shape.per_host; ++b) {
        links.clog(from * shape.per_host + a, to * shape.per_host + b, duration);
      }
    }
  }
  void isolate(std::uint32_t host, Duration duration) {
    for (std::uint32_t other = 0; other < shape.hosts; ++other) {
      if (other != host) {
        clog(host, other, duration);
        clog(other, host, duration);
      }
    }
  }
  void expect_no_failure() {
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->failure, "") << "rank " << rank->backend.rank();
    }
  }

  HostShape shape;
  SimWorld world;
  SimNet links;
  std::vector<std::unique_ptr<SimHost>> hosts;
  std::vector<std::unique_ptr<Rank>> ranks;
};

TEST(NetWaits, WhicheverRankDoesNotTakePartIsNamedByAllOthersInTime) {
  for (const HostShape& shape : kHostShapes) {
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      for (std::uint32_t absent = 0; absent < shape.ranks(); ++absent) {
        for (const Fault fault : {Fault::kHangs, Fault::kIsStopped}) {
          SCOPED_TRACE(fmt::format("{} x {}, seed {}, rank {} {}", shape.hosts, shape.per_host,
                                   seed, absent, fault == Fault::kHangs ? "hangs" : "is stopped"));
          Ranks all(seed, shape);
          all.ranks[absent]->fault = fault;
          all.ranks[absent]->fault_at = static_cast<std::uint32_t>(seed % kRounds);
          all.run();
          for (const auto& rank : all.ranks) {
            if (rank->backend.rank() == absent) {
              continue;
            }
            EXPECT_EQ(rank->blames, absent) << rank->backend.rank() << ": " << rank->failure;
            EXPECT_THAT(rank->failure, HasSubstr(fmt::format("rank {} is on host host-{}", absent,
                                                             absent / shape.per_host)));
            EXPECT_LT(rank->ended_at.time_since_epoch(), kTimeout + kDeadlineGrace + 500ms);
          }
        }
      }
    }
  }
}

TEST(NetWaits, AnErrorSaysWhetherTheRankLives) {
  for (const Fault fault : {Fault::kHangs, Fault::kIsStopped}) {
    Ranks all(3, {4, 1});
    all.ranks[2]->fault = fault;
    all.ranks[2]->fault_at = 1;  // its heartbeats arrived before
    all.run();
    std::string said;
    for (const auto& rank : all.ranks) {
      said += rank->failure + "\n";
    }
    EXPECT_THAT(said,
                HasSubstr(fault == Fault::kHangs
                              ? "rank 2 lives, waits for no rank and does not take part"
                              : "no heartbeat arrives from it (host-2): it is stopped or hangs"));
    EXPECT_THAT(said, HasSubstr("within 2 s"));
  }
}

TEST(NetWaits, ARankThatIsLateEndsNobodysRun) {
  for (const HostShape& shape : kHostShapes) {
    for (std::uint32_t late = 0; late < shape.ranks(); ++late) {
      SCOPED_TRACE(late);
      Ranks all(late, shape);
      all.ranks[late]->fault = Fault::kIsLate;
      all.ranks[late]->fault_at = late % kRounds;
      all.run();
      all.expect_no_failure();
    }
  }
}

TEST(NetWaits, ALinkThatComesBackInTimeEndsNobodysRun) {
  for (const HostShape& shape : kHostShapes) {
    for (std::uint32_t host = 0; host < shape.hosts; ++host) {
      Ranks all(host, shape);
      all.isolate(host, kTimeout * 3 / 4);
      all.run();
      all.expect_no_failure();
    }
  }
}

TEST(NetWaits, AHostWhoseLinkStallsIsNamedByAll) {
  for (const HostShape& shape : {HostShape{4, 1}, HostShape{3, 2}}) {
    for (std::uint32_t host = 0; host < shape.hosts; ++host) {
      for (std::uint64_t seed = 0; seed < 5; ++seed) {
        SCOPED_TRACE(fmt::format("{} x {}, host {}", shape.hosts, shape.per_host, host));
        Ranks all(seed, shape);
        all.isolate(host, kForEver);
        all.run();
        for (const auto& rank : all.ranks) {
          ASSERT_TRUE(rank->blames.has_value());
          EXPECT_EQ(*rank->blames / shape.per_host, host)
              << rank->backend.rank() << ": " << rank->failure;
          EXPECT_LT(rank->ended_at.time_since_epoch(), kTimeout + kDeadlineGrace + 500ms);
        }
      }
    }
  }
}

TEST(NetWaits, TwoHostsWithoutALinkNameEachOther) {
  for (const HostShape& shape : {HostShape{2, 1}, HostShape{2, 2}}) {
    Ranks all(1, shape);
    all.isolate(1, kForEver);
    all.run();
    for (const auto& rank : all.ranks) {
      ASSERT_TRUE(rank->blames.has_value());
      EXPECT_NE(*rank->blames / shape.per_host, rank->backend.rank() / shape.per_host);
      EXPECT_THAT(rank->failure, HasSubstr("or its link stalls"));
    }
  }
}

// Beats come from the other side, frames go nowhere: both wait for each other.
TEST(NetWaits, ALinkThatStallsInOneDirectionEndsTheRun) {
  for (const HostShape& shape : kHostShapes) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      Ranks all(seed, shape);
      all.clog(0, 1, kForEver);
      all.run();
      for (const auto& rank : all.ranks) {
        ASSERT_TRUE(rank->blames.has_value());
        EXPECT_LT(*rank->blames / shape.per_host, 2U) << rank->failure;
        EXPECT_LT(rank->ended_at.time_since_epoch(), kTimeout + kDeadlineGrace + 500ms);
      }
    }
  }
}

// ---- the end of waits
EndOfWaits end_of(const std::map<std::uint32_t, Awaited>& waits, std::uint32_t waiter,
                  std::uint32_t awaited) {
  return end_of_waits(waiter, awaited, 100, [&](std::uint32_t rank) {
    const auto found = waits.find(rank);
    return found == waits.end() ? Awaited() : found->second;
  });
}
Awaited for_ranks(std::initializer_list<std::uint32_t> ranks, bool is_silent = false) {
  Awaited all;
  for (const std::uint32_t rank : ranks) {
    all.add(rank);
  }
  all.set_silent(is_silent);
  return all;
}

TEST(EndOfWaits, IsTheRankThatWaitsForNone) {
  using Why = EndOfWaits::Why;
  EndOfWaits end = end_of({{1, for_ranks({2})}, {2, for_ranks({3})}}, 0, 1);
  EXPECT_EQ(end.rank, 3U);
  EXPECT_EQ(end.why, Why::kWaitsForNone);
  // The last word of a silent rank does not count.
  end = end_of({{1, for_ranks({2})}, {2, for_ranks({0, 1}, true)}}, 0, 1);
  EXPECT_EQ(end.rank, 2U);
  EXPECT_EQ(end.why, Why::kIsSilent);
  // One of its waits leads back, another one does not.
  end = end_of({{1, for_ranks({0, 2})}, {2, for_ranks({1, 7})}}, 0, 1);
  EXPECT_EQ(end.rank, 7U);
  end = end_of({{1, for_ranks({2})}, {2, for_ranks({1, 0})}}, 0, 1);
  EXPECT_EQ(end.rank, 1U);
  EXPECT_EQ(end.why, Why::kCircle);
  // A rank that is not there is not named.
  end = end_of({{1, for_ranks({4095})}}, 0, 1);
  EXPECT_EQ(end.why, Why::kCircle);
}

TEST(EndOfWaits, AWordHoldsFourRanksOnce) {
  Awaited all = for_ranks({4095, 0, 4095, 7, 8, 9}, true);
  std::vector<std::uint32_t> ranks;
  all.for_each([&](std::uint32_t rank) { ranks.push_back(rank); });
  EXPECT_THAT(ranks, ::testing::ElementsAre(4095, 0, 7, 8));
  EXPECT_TRUE(Awaited(all.packed()).is_silent());
  EXPECT_EQ(all.word(0), 4096U);
  EXPECT_EQ(all.word(1), 1U);
}

}  // namespace
}  // namespace tandem
