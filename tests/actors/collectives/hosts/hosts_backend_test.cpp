// Every operation over hosts x ranks, on the simulated net and memory with several seeds, over
// shared memory and over UCX: what ends up where, to the bit as on one host.
#include "actors/collectives/hosts/hosts_backend.hpp"

#include <algorithm>
#include <bit>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/scope.hpp"
#include "runtime/sim/sim_net.hpp"
#include "runtime/sim/sim_pool.hpp"
#include "tests/support/actor_world.hpp"
#include "tests/support/net_ranks.hpp"
#include "tests/support/reduction_reference.hpp"
#include "tests/support/shm_world.hpp"
#include "tests/support/sim_host.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::Expected;

// Three pieces and a part of one of every shard.
constexpr std::size_t kPieceBytes = 2048;
constexpr std::size_t kShard = 7 * kNormTile;
constexpr std::size_t kBytes = 3 * kPieceBytes + 333;

/// The sums of one and of two rounds, of every rank's shard.
struct Sums {
  Sums(std::uint32_t world, DType type)
      : first(world, type, world * kShard, 1), second(world, type, world * kShard, 2) {}
  Expected first, second;
};

bool same_bits(const float* one, const float* other) {
  return std::equal(one, one + kShard, other, [](float a, float b) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
  });
}

void expect_sum(const Expected& expected, std::size_t begin, const float* sum,
                const GradientNorm& norm) {
  const float* wanted = expected.sum.data() + begin;
  EXPECT_TRUE(same_bits(sum, wanted));
  GradientNorm of_wanted;
  add_norm(wanted, DType::kF32, 0, kShard, of_wanted);
  EXPECT_EQ(norm.sum_of_squares, of_wanted.sum_of_squares);
  EXPECT_EQ(norm.first_bad_element, of_wanted.first_bad_element);
}

Task<> check_reductions(CollectiveBackend* backend, const Sums* sums, DType type) {
  const std::uint32_t world = backend->world();
  const std::uint32_t rank = backend->rank();
  std::byte* block = backend->allocate(world * kShard * sizeof(float));
  std::vector<float> own(kShard), all(kShard);
  for (std::uint32_t round = 0; round < 2; ++round) {
    test::fill_block(block, type, world * kShard, rank, round);
    ReduceArguments a{.block = block,
                      .block_type = type,
                      .accumulator = own.data(),
                      .shard_elements = kShard,
                      .mode = round == 0 ? AccumulateMode::kOverwrite : AccumulateMode::kAdd,
                      .want_norm = true};
    const Expected& expected = round == 0 ? sums->first : sums->second;
    GradientNorm norm = co_await backend->reduce_scatter_add(a);
    expect_sum(expected, rank * kShard, own.data(), norm);
    a.accumulator = all.data();
    norm = co_await backend->all_reduce_add(a);
    expect_sum(expected, 0, all.data(), norm);
  }
  const std::uint64_t mine = 70 + rank;
  std::vector<std::uint64_t> theirs(world);
  co_await backend->exchange(
      {reinterpret_cast<const std::byte*>(&mine), reinterpret_cast<std::byte*>(theirs.data()), 8});
  for (std::uint32_t from = 0; from < world; ++from) {
    EXPECT_EQ(theirs[from], 70 + from);
  }
  co_await backend->exchange({});
}

std::byte byte_of(std::uint32_t from, std::uint32_t to, std::size_t i) {
  return static_cast<std::byte>(test::mixed(static_cast<std::uint32_t>(i) + 977 * from + 31 * to));
}
std::vector<std::byte> bytes_of_rank(std::uint32_t from, std::uint32_t to) {
  std::vector<std::byte> bytes(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) {
    bytes[i] = byte_of(from, to, i);
  }
  return bytes;
}

Task<> check_moves(CollectiveBackend* backend) {
  const std::uint32_t world = backend->world();
  const std::uint32_t rank = backend->rank();
  const std::vector<std::byte> shard = bytes_of_rank(rank, 0);
  std::vector<std::byte> block(world * kBytes);
  for (int time = 0; time < 2; ++time) {
    // The second time the shard lies in the block.
    const std::byte* from = time == 0 ? shard.data() : block.data() + rank * kBytes;
    co_await backend->all_gather({from, block.data(), kBytes});
    for (std::size_t i = 0; i < block.size(); ++i) {
      const auto of = static_cast<std::uint32_t>(i / kBytes);
      EXPECT_EQ(std::exchange(block[i], of == rank ? block[i] : std::byte{0}),
                byte_of(of, 0, i % kBytes));
    }
  }

  std::vector<std::byte> pieces, got(world * kBytes), wanted;
  for (std::uint32_t peer = 0; peer < world; ++peer) {
    const std::vector<std::byte> to = bytes_of_rank(rank, peer), of = bytes_of_rank(peer, rank);
    pieces.insert(pieces.end(), to.begin(), to.end());
    wanted.insert(wanted.end(), of.begin(), of.end());
  }
  co_await backend->all_to_all({pieces.data(), got.data(), kBytes});
  EXPECT_EQ(got, wanted);

  for (std::uint32_t root = 0; root < world; ++root) {
    std::vector<std::byte> data = root == rank ? shard : std::vector<std::byte>(kBytes);
    co_await backend->broadcast({data.data(), kBytes, root});
    EXPECT_EQ(data, bytes_of_rank(root, 0));
  }
}

Task<> check_both(CollectiveBackend* backend, const Sums* sums, DType type) {
  co_await with_scope(
      [](Scope& scope, CollectiveBackend* b, const Sums* s, DType t) -> Task<> {
        scope.spawn("reductions", &check_reductions, b, s, t);
        scope.spawn("moves", &check_moves, b);
        co_return;
      },
      backend, sums, type);
}

/// Ranks of a simulated world, as many on each host. With an odd seed a piece is two frames.
struct Hosts {
  using Order = HostsBackend::Order;
  Hosts(std::uint64_t seed, std::uint32_t count, std::uint32_t per_host,
        Order order = Order::kExact)
      : world({.seed = seed, .ranks = count * per_host}), links(world, {.latency = 20us}) {
    for (std::uint32_t rank = 0; rank < count * per_host; ++rank) {
      if (rank % per_host == 0) {
        hosts.push_back(std::make_unique<SimHost>(world, rank, per_host));
      }
      ranks.push_back(
          std::make_unique<Rank>(world, links, *hosts.back(), rank, order, seed % 2 != 0));
    }
  }
  struct Rank {
    Rank(SimWorld& world, SimNet& links, SimHost& host, std::uint32_t rank, Order order,
         bool in_frames)
        : workers(world, rank, {.threads = 2}),
          pool(world.loop(rank), {.threads = 2, .driver = &workers}),
          net(links.attach(rank)),
          local(host.attach(rank, pool)),
          backend(*local, net, pool,
                  {.order = order,
                   .piece_bytes = kPieceBytes,
                   .frame_bytes = in_frames ? kPieceBytes - 800 : kPieceBytes}),
          scope(world.loop(rank), Name("rank")) {}
    SimPool workers;
    CpuPool pool;
    Net net;
    std::unique_ptr<HostLevel> local;
    HostsBackend backend;
    Scope scope;
  };
  void run() {
    const auto end = world.run([&] {
      return std::ranges::all_of(ranks, [](const auto& r) { return r->scope.running() == 0; });
    });
    EXPECT_EQ(end, SimWorld::End::kDone);
  }

  SimWorld world;
  SimNet links;
  std::vector<std::unique_ptr<SimHost>> hosts;
  std::vector<std::unique_ptr<Rank>> ranks;
};

class HostsBackendShapes
    : public ::testing::TestWithParam<std::pair<std::uint32_t, std::uint32_t>> {};

TEST_P(HostsBackendShapes, HaveTheBitsOfOneHost) {
  const auto [count, per_host] = GetParam();
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const Sums sums(count * per_host, type);
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      SCOPED_TRACE(seed);
      Hosts all(seed, count, per_host);
      for (const auto& rank : all.ranks) {
        rank->scope.spawn("checks", &check_both, static_cast<CollectiveBackend*>(&rank->backend),
                          &sums, type);
      }
      all.run();
      for (const auto& rank : all.ranks) {
        EXPECT_TRUE(rank->scope.failures().empty());
      }
      EXPECT_EQ(all.links.frames_under_way(), 0U);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(HostsAndRanks, HostsBackendShapes,
                         ::testing::ValuesIn(std::vector<std::pair<std::uint32_t, std::uint32_t>>{
                             {1, 1}, {1, 4}, {2, 2}, {4, 1}, {2, 1}, {3, 2}}),
                         [](const auto& info) {
                           return std::to_string(info.param.first) + "x" +
                                  std::to_string(info.param.second);
                         });

// Each host's ranks first, then the hosts.
std::vector<float> host_by_host(std::uint32_t count, std::uint32_t per_host) {
  const std::size_t n = count * per_host * kShard;
  std::vector<float> all(n), of_host(n), block(n);
  for (std::uint32_t round = 0; round < 2; ++round) {
    for (std::uint32_t rank = 0; rank < count * per_host; ++rank) {
      test::fill_block(reinterpret_cast<std::byte*>(block.data()), DType::kF32, n, rank, round);
      accumulate(of_host.data(), block.data(), DType::kF32, 0, n,
                 rank % per_host == 0 ? AccumulateMode::kOverwrite : AccumulateMode::kAdd);
      if (rank % per_host == per_host - 1) {
        accumulate(
            all.data(), of_host.data(), DType::kF32, 0, n,
            rank + 1 == per_host && round == 0 ? AccumulateMode::kOverwrite : AccumulateMode::kAdd);
      }
    }
  }
  return all;
}

Task<> reduce_twice(CollectiveBackend* backend, const std::vector<float>* wanted) {
  std::vector<float> block(backend->world() * kShard), sum(kShard);
  GradientNorm norm, of_wanted;
  for (std::uint32_t round = 0; round < 2; ++round) {
    auto* bytes = reinterpret_cast<std::byte*>(block.data());
    test::fill_block(bytes, DType::kF32, block.size(), backend->rank(), round);
    norm = co_await backend->reduce_scatter_add(
        {.block = bytes,
         .accumulator = sum.data(),
         .shard_elements = kShard,
         .mode = round == 0 ? AccumulateMode::kOverwrite : AccumulateMode::kAdd,
         .want_norm = true});
  }
  const float* expected = wanted->data() + backend->rank() * kShard;
  EXPECT_TRUE(same_bits(sum.data(), expected));
  add_norm(expected, DType::kF32, 0, kShard, of_wanted);
  EXPECT_EQ(norm.sum_of_squares, of_wanted.sum_of_squares);
}

TEST(HostsBackend, TheFastOrderAddsHostByHost) {
  const std::vector<float> wanted = host_by_host(3, 2);
  EXPECT_NE(wanted, Expected(6, DType::kF32, wanted.size(), 2).sum) << "another order, other bits";
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Hosts all(seed, 3, 2, HostsBackend::Order::kFast);
    for (const auto& rank : all.ranks) {
      rank->scope.spawn("checks", &reduce_twice, static_cast<CollectiveBackend*>(&rank->backend),
                        &wanted);
    }
    all.run();
    for (const auto& rank : all.ranks) {
      EXPECT_TRUE(rank->scope.failures().empty());
    }
    EXPECT_EQ(all.links.frames_under_way(), 0U);
  }
}

TEST(SelfBackend, EveryOperationOnOneRank) {
  test::World world;
  SelfBackend backend(world.pool);
  const Sums sums(1, DType::kF32);
  world.loop.run(&check_both, static_cast<CollectiveBackend*>(&backend), &sums, DType::kF32);
}

// A rank that stops in the middle of an operation: nothing of it is left, and all others name it,
// on its host and on the others.
TEST(HostsBackend, AStoppedRankIsNamedByAll) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Hosts all(seed, 3, 2);
    const auto stopped = static_cast<std::uint32_t>(seed % 6);
    std::vector<std::byte> block(6 * kShard * sizeof(float));
    std::vector<std::vector<float>> sums(6, std::vector<float>(kShard));
    for (const auto& rank : all.ranks) {
      rank->scope.spawn(
          "reductions",
          [](CollectiveBackend* backend, const std::byte* from, float* sum) -> Task<> {
            for (;;) {
              (void)co_await backend->reduce_scatter_add(
                  {.block = from, .accumulator = sum, .shard_elements = kShard});
            }
          },
          static_cast<CollectiveBackend*>(&rank->backend), block.data(),
          sums[rank->backend.rank()].data());
    }
    all.world.after(std::chrono::microseconds(100 + 37 * seed), stopped,
                    [&] { all.ranks[stopped]->scope.request_stop(); });
    all.run();
    for (const auto& rank : all.ranks) {
      if (rank->backend.rank() == stopped) {
        EXPECT_TRUE(rank->scope.failures().empty()) << "a stop that was asked for is no failure";
        continue;
      }
      ASSERT_EQ(rank->scope.failures().size(), 1U);
      try {
        std::rethrow_exception(rank->scope.failures()[0].error);
      } catch (const PeerLost& lost) {
        EXPECT_EQ(lost.rank(), stopped);
      }
    }
  }
}

/// A net for ranks that are all on one host: it must get no operation.
class NoNet final : public NetBackend {
 public:
  NoNet(std::uint32_t rank, std::uint32_t world) : rank_(rank), world_(world) {}
  [[nodiscard]] std::uint32_t rank() const noexcept override { return rank_; }
  [[nodiscard]] std::uint32_t world() const noexcept override { return world_; }
  void submit(NetOp& /*op*/) override { TANDEM_CHECK(false, "there is one host"); }
  bool cancel(NetOp& /*op*/) noexcept override { return false; }
  void abort(std::uint32_t /*failed_rank*/) override {}
  void send_heartbeat(std::uint32_t /*peer*/, std::size_t /*place*/,
                      std::uint16_t /*word*/) override {}
  [[nodiscard]] PeerHeartbeats heartbeats_of(std::uint32_t /*peer*/) const noexcept override {
    return {};
  }

 private:
  std::uint32_t rank_;
  std::uint32_t world_;
};

TEST(HostsBackend, OneHostOverSharedMemoryHasTheSameBits) {
  for (const std::uint32_t world : {1U, 3U}) {
    const Sums sums(world, DType::kBF16);
    const auto errors = test::run_ranks(world, [&](test::ShmRank& rank) {
      Net net(std::make_unique<NoNet>(rank.backend->rank(), world));
      HostsBackend backend(*rank.backend, net, rank.pool, {.piece_bytes = kPieceBytes});
      rank.loop.run(&check_both, static_cast<CollectiveBackend*>(&backend), &sums, DType::kBF16);
    });
    EXPECT_EQ(errors, std::vector<std::string>(world));
  }
}

// All of it together: shared memory inside of a host, UCX on the loopback between hosts. A rank is
// a thread.
TEST(HostsBackend, OverSharedMemoryAndUcxHostsHaveTheSameBits) {
  if (!ucx_support().usable) {
    GTEST_SKIP() << "no UCX: " << ucx_support().what;
  }
  for (const auto& [count, per_host] : {std::pair(2U, 1U), std::pair(2U, 2U)}) {
    const std::uint32_t world = count * per_host;
    const Sums sums(world, DType::kBF16);
    AddressBook book(world);
    std::vector<std::vector<std::string>> errors(count);
    std::vector<std::thread> hosts;
    hosts.reserve(count);
    for (std::uint32_t host = 0; host < count; ++host) {
      hosts.emplace_back([&, host, first = host * per_host, ranks = per_host] {
        errors[host] = test::run_ranks(
            ranks,
            [&](test::ShmRank& rank) {
              const std::uint32_t number = first + rank.backend->rank();
              Net net(connect_on_loopback(rank.loop, loopback_options(number, world), book));
              HostsBackend backend(*rank.backend, net, rank.pool, {.piece_bytes = kPieceBytes});
              rank.loop.run(&check_both, static_cast<CollectiveBackend*>(&backend), &sums,
                            DType::kBF16);
            },
            {.first_rank = first, .all_ranks = world});
      });
    }
    for (std::thread& host : hosts) {
      host.join();
    }
    EXPECT_EQ(errors, std::vector(count, std::vector<std::string>(per_host)));
  }
}

TEST(HostsBackend, SharedMemoryNamesRanksAsAllHostsDo) {
  for (const bool elsewhere : {true, false}) {
    const auto errors = test::run_ranks(
        2,
        [&](test::ShmRank& rank) {
          if (rank.backend->rank() == 1) {
            elsewhere ? rank.backend->fail(2, "rank 2 is lost") : rank.backend->abort("no more");
          }
          rank.loop.run([](ShmBackend* backend) -> Task<> { co_await backend->exchange({}); },
                        rank.backend.get());
        },
        {.first_rank = 4, .all_ranks = 8});
    EXPECT_EQ(errors[0], fmt::format("[collectives] {}; exchange 0 cannot end on rank 4",
                                     elsewhere ? "rank 2 is lost" : "rank 5 aborted: no more"));
  }
}

}  // namespace
}  // namespace tandem
