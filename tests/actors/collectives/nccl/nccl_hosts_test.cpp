// Ranks with GPUs on several hosts, in the simulator, on fakes of CUDA and NCCL: both sequences at
// once have the bits of one host, in one order of launches; a rank at fault is named by all
// others in time, and who is slow ends no run.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/collectives/nccl/joined_nccl_peers.hpp"
#include "runtime/sim/sim_net.hpp"
#include "runtime/sleep.hpp"
#include "tests/support/nccl_world.hpp"
#include "tests/support/reduction_reference.hpp"
#include "tests/support/sim_host.hpp"
#include "tests/support/sim_nccl_host.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::Expected;
using test::FakeCuda;
using test::FakeNccl;
using test::fill_block;
using ::testing::HasSubstr;

constexpr Duration kTimeout = 400ms;
constexpr Duration kHeartbeat = 50ms;
constexpr Duration kForEver = 3 * kTimeout;
constexpr std::uint32_t kRounds = 6;
constexpr std::size_t kShard = 3 * kNormTile;

enum class Fault {
  kNone,
  kHangs,      // its program; its loop goes on
  kIsStopped,  // as by SIGSTOP
  kIsLate,
  kDies,
  kGivesUp,
};

struct Ranks;

struct Rank {
  std::uint32_t number = 0;
  std::unique_ptr<CudaDevice> device;
  std::shared_ptr<JoinedNcclPeers> peers;
  std::unique_ptr<NcclBackend> backend;
  std::unique_ptr<Scope> scope;
  Fault fault = Fault::kNone;
  std::uint32_t fault_at = 0;  // a round
  bool is_absent = false;
  std::optional<std::uint32_t> blames;
  std::string failure;
  TimePoint ended_at;
  std::vector<float> sum;  // a reduce-scatter's shard
  std::vector<float> all;  // an all-reduce's result
};

struct Options {
  bool own_sums = false;
  SimNet::Options links{.latency = 20us};
  std::uint32_t rounds = kRounds;
};

struct Ranks {
  Ranks(std::uint64_t seed, const HostShape& form, Options chosen = {});
  void run();
  void bury_the_dead();
  [[nodiscard]] bool all_ended() const {
    return std::ranges::all_of(ranks, [this](const auto& rank) {
      return rank->scope->running() == 0 || !world.alive(rank->number);
    });
  }
  /// Nothing passes between the hosts, of frames and of NCCL's.
  void isolate(std::uint32_t host, Duration duration) {
    for (std::uint32_t a = 0; a < shape.ranks(); ++a) {
      for (std::uint32_t b = 0; b < shape.ranks(); ++b) {
        if ((a / shape.per_host == host) != (b / shape.per_host == host)) {
          links.clog(a, b, duration);
        }
      }
    }
  }
  void expect_no_failure() const {
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->failure, "") << "rank " << rank->number;
    }
  }

  HostShape shape;
  Options options;
  SimWorld world;
  SimNet links;
  FakeCuda cuda;
  FakeNccl nccl;
  std::vector<std::unique_ptr<SimNcclHost>> hosts;
  std::vector<std::unique_ptr<Rank>> ranks;
};

NcclBackend::Options back_end_options(const Ranks& all, const Rank& rank) {
  NcclBackend::Options made;
  made.rank = rank.number;
  made.world = all.shape.ranks();
  made.api = &FakeNccl::api();
  made.kernels = &test::fake_kernels();
  made.own_sums = all.options.own_sums;
  made.peers = rank.peers;
  made.workspace_bytes = 16 << 10;
  made.timeout = kTimeout;
  made.connect_timeout = 3s;
  for (std::uint32_t of = 0; of < made.world; ++of) {
    made.hosts.push_back(fmt::format("host-{}", of / all.shape.per_host));
  }
  made.from_rank_0 = [](std::string_view key, const std::string& value) {
    std::string id(key);  // on one thread no rank can wait for rank 0's
    id.resize(value.size());
    return id;
  };
  made.watchdog.own_thread = false;
  made.watchdog.end_process = [](const std::string& why) { ADD_FAILURE() << why; };
  made.watchdog.run_abort = [](const std::function<void()>& abort) { abort(); };
  return made;
}

DeviceBuffer buffer(const Rank& rank, std::size_t bytes) { return rank.device->allocate(bytes); }

/// The rank's fault comes before its reduction of that round; gathers go on until it is there.
Task<> suffer(Rank* self, Ranks* all) {
  switch (self->fault) {
    case Fault::kHangs:
      self->is_absent = true;
      co_await sleep_for(kForEver);
      break;
    case Fault::kIsStopped:
      self->is_absent = true;
      all->world.after(Duration(0), self->number,
                       [self, all] { all->world.pause(self->number, kForEver); });
      co_await sleep_for(10us);  // it gets there afterwards
      break;
    case Fault::kIsLate:
      co_await sleep_for(kTimeout * 3 / 4);
      break;
    case Fault::kDies:
      all->world.after(Duration(0), self->number, [self, all] { all->world.kill(self->number); });
      co_await sleep_for(10us);
      break;
    case Fault::kGivesUp:
      self->backend->abort("it has enough");
      break;
    case Fault::kNone:
      break;
  }
}

Task<> gather(Rank* self, const Ranks* all) {
  const std::size_t bytes = kShard * sizeof(float);
  const DeviceBuffer shard = buffer(*self, bytes);
  const DeviceBuffer block = buffer(*self, bytes * all->shape.ranks());
  for (std::uint32_t round = 0; round < all->options.rounds; ++round) {
    if (self->is_absent) {
      co_await sleep_for(kForEver);
    }
    std::memset(shard.data(), static_cast<int>(self->number * 16 + round % 16), bytes);
    co_await self->backend->all_gather({shard.data(), block.data(), bytes});
    for (std::uint32_t of = 0; of < all->shape.ranks(); ++of) {
      EXPECT_EQ(block.data()[(of + 1) * bytes - 1], static_cast<std::byte>(of * 16 + round % 16));
    }
  }
}

Task<> reduce(Rank* self, Ranks* all) {
  const std::size_t elements = kShard * all->shape.ranks();
  const DeviceBuffer block = buffer(*self, elements * sizeof(float));
  const DeviceBuffer sum = buffer(*self, kShard * sizeof(float));
  const DeviceBuffer whole = buffer(*self, elements * sizeof(float));
  for (std::uint32_t round = 0; round < all->options.rounds; ++round) {
    if (round == self->fault_at) {
      co_await suffer(self, all);
    }
    fill_block(block.data(), DType::kF32, elements, self->number, round);
    ReduceArguments a{.block = block.data(),
                      .accumulator = sum.data(),
                      .shard_elements = kShard,
                      .mode = round == 0 ? AccumulateMode::kOverwrite : AccumulateMode::kAdd};
    (void)co_await self->backend->reduce_scatter_add(a);
    a.accumulator = whole.data();
    a.shard_elements = elements;
    (void)co_await self->backend->all_reduce_add(a);
    co_await self->backend->exchange({});
  }
  self->sum.resize(kShard);
  std::memcpy(self->sum.data(), sum.data(), kShard * sizeof(float));
  self->all.resize(elements);
  std::memcpy(self->all.data(), whole.data(), elements * sizeof(float));
}

Task<> train(Rank* self, Ranks* all) {
  try {
    self->backend = co_await NcclBackend::connect(
        &all->world.loop(self->number), self->device.get(), back_end_options(*all, *self));
    co_await with_scope(
        [](Scope& both, Rank* rank, Ranks* of) -> Task<> {
          both.spawn("gathers", &gather, rank, static_cast<const Ranks*>(of));
          both.spawn("reductions", &reduce, rank, of);
          co_return;
        },
        self, all);
  } catch (const PeerLost& lost) {
    self->blames = lost.rank();
    self->failure = lost.what();
  }
  self->ended_at = EventLoop::current().now();
  co_await self->peers->leave();
}

Ranks::Ranks(std::uint64_t seed, const HostShape& form, Options chosen)
    : shape(form),
      options(chosen),
      world({.seed = seed, .ranks = form.ranks()}),
      links(world, chosen.links),
      cuda(world.loop(0).clock()) {
  nccl.per_host = form.per_host;
  nccl.host_cost = 30us;
  nccl.questions = static_cast<int>(seed % 3);
  for (std::uint32_t number = 0; number < form.ranks(); ++number) {
    if (number % form.per_host == 0) {
      hosts.push_back(std::make_unique<SimNcclHost>(
          world, number, form.per_host, SimNcclHost::Options{.silent_after = 3 * kHeartbeat}));
    }
    auto rank = std::make_unique<Rank>();
    rank->number = number;
    EventLoop& loop = world.loop(number);
    rank->device = std::make_unique<CudaDevice>(
        loop, FakeCuda::api(), CudaDevice::Options{.name = fmt::format("gpu {}", number)});
    JoinedNcclPeers::Options joined{.waits = {.timeout = kTimeout, .heartbeat = kHeartbeat}};
    for (std::uint32_t host = 0; host < form.hosts; ++host) {
      joined.waits.host_names.push_back(fmt::format("host-{}", host));
    }
    rank->peers = std::make_shared<JoinedNcclPeers>(loop, hosts.back()->attach(number),
                                                    links.attach(number), joined);
    rank->scope = std::make_unique<Scope>(loop, Name("rank"));
    ranks.push_back(std::move(rank));
  }
}

void Ranks::run() {
  for (const auto& rank : ranks) {
    rank->scope->spawn("train", &train, rank.get(), this);
  }
  ASSERT_EQ(world.run([this] { return all_ended(); }), SimWorld::End::kDone);
  bury_the_dead();
  for (const auto& rank : ranks) {
    EXPECT_TRUE(rank->scope->failures().empty());
  }
  EXPECT_EQ(nccl.mismatches(), std::vector<std::string>());
}

void Ranks::bury_the_dead() {
  for (const auto& rank : ranks) {
    if (!world.alive(rank->number)) {
      links.cut(rank->number);
      rank->backend->abort("it is dead");
      world.bury(rank->number);
    }
  }
  ASSERT_EQ(world.run([this] {
    return std::ranges::all_of(ranks, [](const auto& r) { return r->scope->running() == 0; });
  }),
            SimWorld::End::kDone);
}

/// All shards, by rank, and the all-reduced.
std::vector<float> sums_of(std::uint64_t seed, const HostShape& shape, bool own_sums) {
  Ranks all(seed, shape, {.own_sums = own_sums});
  all.run();
  all.expect_no_failure();
  std::vector<float> sums;
  for (const auto& rank : all.ranks) {
    sums.insert(sums.end(), rank->sum.begin(), rank->sum.end());
    EXPECT_EQ(rank->all, all.ranks.front()->all);
    EXPECT_EQ(all.nccl.launches(rank->number), all.nccl.launches(0)) << "one order of launches";
  }
  EXPECT_EQ(sums, all.ranks.front()->all);
  return sums;
}

TEST(NcclHosts, TwoHostsWithTwoRanksHaveTheBitsOfOneWithFourAndFourWithOne) {
  const Expected expected(4, DType::kF32, 4 * kShard, kRounds);
  for (const HostShape& shape : {HostShape{1, 4}, HostShape{2, 2}, HostShape{4, 1}}) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE(fmt::format("{} x {}, seed {}", shape.hosts, shape.per_host, seed));
      EXPECT_EQ(sums_of(seed, shape, false), expected.sum);
    }
  }
}

// In NCCL's order, which the fake has from the last rank to the first.
TEST(NcclHosts, AddByNcclItselfOnRequest) {
  const Expected in_rank_order(4, DType::kF32, 4 * kShard, kRounds);
  const std::vector<float> of_one_host = sums_of(1, {1, 4}, true);
  EXPECT_NE(of_one_host, in_rank_order.sum);
  EXPECT_EQ(sums_of(2, {2, 2}, true), of_one_host);
  EXPECT_EQ(sums_of(3, {4, 1}, true), of_one_host);
}

// Rank 0 runs away from the others as far as it may, and no decision is lost.
TEST(NcclHosts, SlowLinksAndSlowRanksEndNobodysRun) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const HostShape shape = kHostShapes[seed % kHostShapes.size()];
    SCOPED_TRACE(fmt::format("{} x {}, seed {}", shape.hosts, shape.per_host, seed));
    Ranks all(seed, shape, {.links = {.latency = 3ms, .window_frames = 2}, .rounds = 40});
    all.world.slow_down(static_cast<std::uint32_t>(seed) % shape.ranks(), 9);
    all.run();
    all.expect_no_failure();
    for (const auto& rank : all.ranks) {
      EXPECT_EQ(all.nccl.launches(rank->number), all.nccl.launches(0));
    }
  }
}

TEST(NcclHosts, WhicheverRankIsAtFaultIsNamedByAllOthersInTime) {
  for (const HostShape& shape : kHostShapes) {
    for (const Fault fault : {Fault::kHangs, Fault::kIsStopped, Fault::kDies, Fault::kGivesUp}) {
      for (std::uint32_t absent = 0; absent < shape.ranks(); ++absent) {
        const std::uint64_t seed = absent + 10 * static_cast<std::uint64_t>(fault);
        SCOPED_TRACE(fmt::format("{} x {}, rank {}, fault {}", shape.hosts, shape.per_host, absent,
                                 static_cast<int>(fault)));
        Ranks all(seed, shape);
        all.ranks[absent]->fault = fault;
        all.ranks[absent]->fault_at = absent % kRounds;
        all.run();
        for (const auto& rank : all.ranks) {
          if (rank->number == absent) {
            continue;
          }
          EXPECT_EQ(rank->blames, absent) << rank->number << ": " << rank->failure;
          EXPECT_THAT(rank->failure, HasSubstr(fmt::format("; rank {} is on host host-{}", absent,
                                                           absent / shape.per_host)));
          EXPECT_LT(rank->ended_at.time_since_epoch(), kTimeout + 300ms);
        }
        EXPECT_EQ(all.nccl.live(), 0) << "every communicator is aborted";
      }
    }
  }
}

TEST(NcclHosts, AnErrorSaysWhatIsKnownOfTheRank) {
  const auto said = [](Fault fault) {
    Ranks all(3, {4, 1});
    all.ranks[2]->fault = fault;
    all.ranks[2]->fault_at = 1;
    all.run();
    return all.ranks[3]->failure;
  };
  EXPECT_THAT(said(Fault::kHangs), HasSubstr("did not arrive at "));
  EXPECT_THAT(said(Fault::kHangs), HasSubstr("rank 2 lives, waits for no rank"));
  EXPECT_THAT(said(Fault::kIsStopped), HasSubstr("no heartbeat arrives from it (host-2)"));
  EXPECT_THAT(said(Fault::kDies), HasSubstr("rank 2 is gone"));
  EXPECT_THAT(said(Fault::kGivesUp), HasSubstr("rank 2 aborted: it has enough"));
}

TEST(NcclHosts, ALinkThatComesBackInTimeEndsNobodysRun) {
  for (const HostShape& shape : kHostShapes) {
    for (std::uint32_t host = 0; host < shape.hosts; ++host) {
      Ranks all(host, shape);
      all.isolate(host, kTimeout * 3 / 4);
      all.run();
      all.expect_no_failure();
    }
    Ranks all(7, shape);
    all.ranks.back()->fault = Fault::kIsLate;
    all.run();
    all.expect_no_failure();
  }
}

TEST(NcclHosts, AHostWhoseLinkStallsIsNamedByAll) {
  for (const HostShape& shape : {HostShape{4, 1}, HostShape{3, 2}}) {
    for (std::uint32_t host = 0; host < shape.hosts; ++host) {
      SCOPED_TRACE(fmt::format("{} x {}, host {}", shape.hosts, shape.per_host, host));
      Ranks all(host, shape);
      all.isolate(host, kForEver);
      all.run();
      for (const auto& rank : all.ranks) {
        ASSERT_TRUE(rank->blames.has_value());
        EXPECT_EQ(*rank->blames / shape.per_host, host) << rank->number << ": " << rank->failure;
        EXPECT_LT(rank->ended_at.time_since_epoch(), kTimeout + 300ms);
      }
    }
  }
}

// The frames say that every rank has come: it is no rank's fault.
TEST(NcclHosts, NcclsOwnLinksThatStandStillAreSaidSo) {
  Ranks all(5, {2, 2});
  all.nccl.cut_off[1] = true;
  all.run();
  for (const auto& rank : all.ranks) {
    EXPECT_EQ(rank->blames, kUnknownRank);
    EXPECT_THAT(rank->failure, HasSubstr("all ranks have begun it: a GPU or NCCL's links"));
  }
}

}  // namespace
}  // namespace tandem
