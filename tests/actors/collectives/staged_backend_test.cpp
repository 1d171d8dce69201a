// Collectives on device memory have the bits of the inner back end, at every world size.
#include "actors/collectives/staged_backend.hpp"

#include <cmath>
#include <cstring>
#include <ostream>
#include <vector>

#include <gtest/gtest.h>

#include "actors/collectives/shm/shm_backend.hpp"
#include "runtime/device/sim_device.hpp"
#include "runtime/scope.hpp"
#include "tests/support/shm_world.hpp"

namespace tandem {
namespace {

using test::run_ranks;
using test::ShmRank;

// The bytes of one half of the stage. With four ranks a piece is one grain, so that a few dozen KB
// already make several pieces.
constexpr std::size_t kStage = 16 << 10;

std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x45d9f3bU;
  x = (x ^ (x >> 16)) * 0x45d9f3bU;
  return x ^ (x >> 16);
}

/// Fills the block with values of many magnitudes, so that another order of additions gives other
/// bits.
void fill_block(std::byte* block, DType type, std::size_t n, std::uint32_t rank,
                std::uint32_t round) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits =
        mixed(static_cast<std::uint32_t>(i) * 31 + rank * 7919 + round * 104729);
    values[i] = std::ldexp(static_cast<float>(static_cast<std::int32_t>(bits)),
                           static_cast<int>(bits % 24) - 40);
  }
  cast(values.data(), DType::kF32, block, type, 0, n);
}

std::byte byte_of(std::uint32_t from, std::uint32_t to, std::size_t i) {
  return static_cast<std::byte>(mixed(static_cast<std::uint32_t>(i) + 1000 * from + 77 * to));
}

SimDevice::Options device_options(SimDevice::Time time) {
  return {.time = time,
          .memory_bytes = std::uint64_t{256} << 20,
          .to_device_bytes_per_s = 20e9,
          .to_host_bytes_per_s = 10e9};
}

/// One rank with a device of its own: alone in virtual time, or one of several in real time.
struct DeviceRank {
  EventLoop& loop;
  CpuPool& pool;
  SimDevice device;
  std::vector<DeviceBuffer> allocated;
  StagedBackend staged;

  DeviceRank(EventLoop& rank_loop, CpuPool& rank_pool, std::unique_ptr<CollectiveBackend> inner,
             SimDevice::Time time)
      : loop(rank_loop),
        pool(rank_pool),
        device(rank_loop, device_options(time)),
        staged(device, std::move(inner), {.stage_bytes = kStage}) {}

  /// Memory on either side.
  Placed<std::byte> memory(bool on_device, std::size_t bytes) {
    if (!on_device) {
      return staged.allocate(bytes);
    }
    return {Place::kDevice, allocated.emplace_back(device.allocate(bytes)).data()};
  }
};

struct Case {
  std::uint32_t world;
  bool virtual_time;  // only for world 1
};
void PrintTo(const Case& one, std::ostream* out) {
  *out << one.world << " ranks, " << (one.virtual_time ? "virtual" : "real") << " time";
}

void on_device_ranks(const Case& c, const std::function<void(DeviceRank&)>& body) {
  if (c.virtual_time) {
    ManualClock clock;
    EventLoop loop({.name = "rank 0", .clock = &clock});
    CpuPool pool(loop, {.threads = 2});
    DeviceRank rank(loop, pool, std::make_unique<SelfBackend>(pool), SimDevice::Time::kVirtual);
    body(rank);
    return;
  }
  const std::vector<std::string> errors = run_ranks(c.world, [&](ShmRank& shm) {
    DeviceRank rank(shm.loop, shm.pool, std::move(shm.backend), SimDevice::Time::kReal);
    body(rank);
  });
  EXPECT_EQ(errors, std::vector<std::string>(c.world));
}

class Staged : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Staged,
                         ::testing::Values(Case{1, true}, Case{1, false}, Case{2, false},
                                           Case{3, false}, Case{4, false}),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           return fmt::format("{}ranks_{}", info.param.world,
                                              info.param.virtual_time ? "virtual" : "real");
                         });

// ---- reductions ----
struct Reduced {
  std::vector<float> sum;
  GradientNorm norm;
};

Task<Reduced> two_rounds(DeviceRank* rank, ReduceArguments a, std::size_t elements, bool all) {
  Reduced result;
  result.sum.resize(a.shard_elements);
  for (std::uint32_t round = 0; round < 2; ++round) {
    fill_block(const_cast<std::byte*>(a.block.memory()), a.block_type, elements,
               rank->staged.rank(), round);
    a.mode = round == 0 ? AccumulateMode::kOverwrite : AccumulateMode::kAdd;
    a.want_norm = round == 1;
    result.norm =
        all ? co_await rank->staged.all_reduce_add(a) : co_await rank->staged.reduce_scatter_add(a);
  }
  std::memcpy(result.sum.data(), a.accumulator.memory(), a.shard_elements * sizeof(float));
  co_return result;
}

Reduced reduce(DeviceRank& rank, bool on_device, DType type, std::size_t shard, bool all) {
  const std::size_t elements = all ? shard : shard * rank.staged.world();
  const ReduceArguments a{.block = rank.memory(on_device, elements * bytes_of(type)),
                          .block_type = type,
                          .accumulator = rank.memory(false, shard * sizeof(float)),
                          .shard_elements = shard};
  return rank.loop.run(&two_rounds, &rank, a, elements, all);
}

// One block; the boundary of a piece; many pieces, the last one short.
constexpr std::size_t kShards[] = {512, 4096, 512 * 67};

TEST_P(Staged, ReductionsHaveTheInnerBackEndsBits) {
  on_device_ranks(GetParam(), [](DeviceRank& rank) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const std::size_t shard : kShards) {
        for (const bool all : {false, true}) {
          const Reduced expected = reduce(rank, false, type, shard, all);
          const Reduced got = reduce(rank, true, type, shard, all);
          EXPECT_EQ(0, std::memcmp(got.sum.data(), expected.sum.data(), shard * sizeof(float)))
              << name_of(type) << " " << shard << (all ? " all" : "");
          EXPECT_EQ(got.norm.sum_of_squares, expected.norm.sum_of_squares);
          EXPECT_NE(got.norm.sum_of_squares, ExactSum());
        }
      }
    }
  });
}

TEST(StagedBackend, KeepsA16BitGradientAsItIsOnOneRank) {
  on_device_ranks({1, true}, [](DeviceRank& rank) {
    const std::size_t n = 512 * 67;
    ReduceArguments a{.block = rank.memory(true, n * 2),
                      .block_type = DType::kBF16,
                      .accumulator_type = DType::kBF16,
                      .shard_elements = n,
                      .want_norm = true};
    std::vector<std::byte> sum(n * 2);
    a.accumulator = sum.data();
    fill_block(const_cast<std::byte*>(a.block.memory()), DType::kBF16, n, 0, 0);
    const GradientNorm norm = rank.loop.run(
        [](StagedBackend* s, ReduceArguments r) -> Task<GradientNorm> {
          co_return co_await s->reduce_scatter_add(r);
        },
        &rank.staged, a);
    EXPECT_EQ(0, std::memcmp(sum.data(), a.block.memory(), n * 2));
    GradientNorm expected;
    add_norm(sum.data(), DType::kBF16, 0, n, expected);
    EXPECT_EQ(norm.sum_of_squares, expected.sum_of_squares);
  });
}

TEST_P(Staged, TheFirstBadElementIsNamedAcrossPieces) {
  on_device_ranks(GetParam(), [](DeviceRank& rank) {
    const std::size_t n = 512 * 67;
    const std::size_t elements = n * rank.staged.world();
    const Placed<std::byte> block = rank.memory(true, elements * 4);
    std::memset(block.memory(), 0, elements * 4);
    auto* values = reinterpret_cast<float*>(block.memory());
    if (rank.staged.rank() + 1 == rank.staged.world()) {
      values[n - 5] = std::nanf("");
      values[512 * 40 + 7] = INFINITY;  // in rank 0's slice
    }
    for (const bool all : {false, true}) {
      const ReduceArguments a{.block = block,
                              .accumulator = rank.memory(false, n * 4),
                              .shard_elements = n,
                              .want_norm = true};
      const GradientNorm norm = rank.loop.run(
          [](StagedBackend* s, ReduceArguments r, bool whole) -> Task<GradientNorm> {
            co_return whole ? co_await s->all_reduce_add(r) : co_await s->reduce_scatter_add(r);
          },
          &rank.staged, a, all);
      EXPECT_EQ(norm.first_bad_element, all || rank.staged.rank() == 0 ? 512 * 40 + 7 : -1);
    }
  });
}

// ---- moves ----
// Nothing, odd, around the boundaries of a piece at one rank and at four, many pieces.
constexpr std::size_t kMoves[] = {0, 1, 1001, 4095, 4096, 4097, 16'384, 16'385, 100'003};

void gather(DeviceRank& rank, std::size_t bytes, bool shard_on_device, bool in_place) {
  SCOPED_TRACE(fmt::format("gather {} {} {}", bytes, shard_on_device, in_place));
  const std::uint32_t r = rank.staged.rank();
  const std::size_t all = bytes * rank.staged.world();
  const Placed<std::byte> there = rank.memory(true, all + 1);
  std::byte* const block = there.memory();
  std::memset(block, 9, all + 1);
  const Placed<std::byte> shard =
      in_place ? there + r * bytes : rank.memory(shard_on_device, bytes + 1);
  for (std::size_t i = 0; i < bytes; ++i) {
    shard.memory()[i] = byte_of(r, 0, i);
  }
  rank.loop.run([](StagedBackend* s, GatherArguments a) -> Task<> { co_await s->all_gather(a); },
                &rank.staged, GatherArguments{shard, there, bytes});
  for (std::size_t i = 0; i < all; ++i) {
    ASSERT_EQ(block[i], byte_of(static_cast<std::uint32_t>(i / bytes), 0, i % bytes)) << i;
  }
  EXPECT_EQ(block[all], std::byte{9});
}

/// The shard is all of the block: every rank has its own copied, whatever the others have.
void copy_whole(DeviceRank& rank, std::size_t bytes) {
  for (const bool on_device : {false, true}) {
    std::byte* const shard = rank.memory(false, bytes + 1).host();
    const Placed<std::byte> into = rank.memory(on_device, bytes + 1);
    std::byte* const block = into.memory();
    block[bytes] = std::byte{9};
    for (std::size_t i = 0; i < bytes; ++i) {
      shard[i] = byte_of(rank.staged.rank(), 0, i);
    }
    rank.loop.run([](StagedBackend* s, GatherArguments a) -> Task<> { co_await s->all_gather(a); },
                  &rank.staged, GatherArguments{shard, into, bytes, true});
    EXPECT_EQ(0, std::memcmp(block, shard, bytes)) << bytes << on_device;
    EXPECT_EQ(block[bytes], std::byte{9});
  }
}

void swap_and_broadcast(DeviceRank& rank, std::size_t bytes) {
  SCOPED_TRACE(bytes);
  const std::uint32_t r = rank.staged.rank();
  const std::size_t all = bytes * rank.staged.world();
  std::byte* const from = rank.memory(true, all + 1).memory();
  std::byte* const into = rank.memory(true, all + 1).memory();
  const auto there = [](std::byte* memory) { return Placed(Place::kDevice, memory); };
  std::memset(into, 9, all + 1);
  for (std::size_t i = 0; i < all; ++i) {
    from[i] = byte_of(r, static_cast<std::uint32_t>(i / bytes), i % bytes);
  }
  rank.loop.run([](StagedBackend* s, AllToAllArguments a) -> Task<> { co_await s->all_to_all(a); },
                &rank.staged, AllToAllArguments{there(from), there(into), bytes});
  for (std::size_t i = 0; i < all; ++i) {
    ASSERT_EQ(into[i], byte_of(static_cast<std::uint32_t>(i / bytes), r, i % bytes)) << i;
  }
  EXPECT_EQ(into[all], std::byte{9});
  for (std::uint32_t root = 0; root < rank.staged.world(); ++root) {
    std::byte* data = root == r ? from : into;
    rank.loop.run(
        [](StagedBackend* s, BroadcastArguments a) -> Task<> { co_await s->broadcast(a); },
        &rank.staged, BroadcastArguments{there(data), bytes, root});
    for (std::size_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(data[i], byte_of(root, 0, i)) << i;
    }
  }
}

TEST_P(Staged, MovesArriveWhole) {
  on_device_ranks(GetParam(), [](DeviceRank& rank) {
    for (const std::size_t bytes : kMoves) {
      gather(rank, bytes, false, false);
      gather(rank, bytes, true, false);
      gather(rank, bytes, true, true);
      copy_whole(rank, bytes);
      swap_and_broadcast(rank, bytes);
    }
  });
}

TEST_P(Staged, AnExchangeMayBeOnEitherSide) {
  on_device_ranks(GetParam(), [](DeviceRank& rank) {
    for (const bool on_device : {false, true}) {
      const ExchangeArguments exchange{rank.memory(on_device, 8),
                                       rank.memory(on_device, 8 * rank.staged.world()), 8};
      auto* mine = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(exchange.mine.memory()));
      const auto* all = reinterpret_cast<const std::uint64_t*>(exchange.all.memory());
      *mine = 100 + rank.staged.rank();
      rank.loop.run(
          [](StagedBackend* s, ExchangeArguments a) -> Task<> { co_await s->exchange(a); },
          &rank.staged, exchange);
      for (std::uint32_t r = 0; r < rank.staged.world(); ++r) {
        EXPECT_EQ(all[r], 100 + r);
      }
    }
  });
}

Task<> both_sequences(DeviceRank* rank, GatherArguments g, ReduceArguments r) {
  co_await with_scope(
      [](Scope& scope, DeviceRank* self, GatherArguments gathers,
         ReduceArguments reductions) -> Task<> {
        scope.spawn(
            "gathers",
            [](DeviceRank* d, GatherArguments a) -> Task<> {
              for (int round = 0; round < 8; ++round) {
                std::memset(const_cast<std::byte*>(a.shard.memory()), round + 1, a.shard_bytes);
                co_await d->staged.all_gather(a);
                EXPECT_EQ(a.block.memory()[a.shard_bytes * d->staged.world() - 1],
                          std::byte(round + 1));
              }
            },
            self, gathers);
        scope.spawn(
            "reductions",
            [](DeviceRank* d, ReduceArguments a) -> Task<> {
              auto* values = reinterpret_cast<float*>(const_cast<std::byte*>(a.block.memory()));
              for (int round = 0; round < 8; ++round) {
                std::fill_n(values, a.shard_elements * d->staged.world(), 1.0F + round);
                (void)co_await d->staged.reduce_scatter_add(a);
                EXPECT_EQ(static_cast<float*>(a.accumulator.memory())[a.shard_elements - 1],
                          (1.0F + round) * static_cast<float>(d->staged.world()));
              }
            },
            self, reductions);
        co_return;
      },
      rank, g, r);
}

TEST_P(Staged, GathersAndReductionsRunAtTheSameTime) {
  on_device_ranks(GetParam(), [](DeviceRank& rank) {
    const std::size_t bytes = 50'000;
    const std::size_t shard = 512 * 40;
    const std::uint32_t world = rank.staged.world();
    rank.loop.run(
        &both_sequences, &rank,
        GatherArguments{rank.memory(false, bytes), rank.memory(true, bytes * world), bytes},
        ReduceArguments{.block = rank.memory(true, shard * world * 4),
                        .accumulator = rank.memory(false, shard * 4),
                        .shard_elements = shard});
  });
}

/// On one rank the accumulator may lie on the device, too.
TEST(StagedBackend, AddsOnTheDeviceWhatItsInnerBackEndWouldAdd) {
  on_device_ranks({1, true}, [](DeviceRank& rank) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const std::size_t shard : kShards) {
        const auto reduced = [&](bool on_device) {
          return rank.loop.run(
              &two_rounds, &rank,
              ReduceArguments{.block = rank.memory(on_device, shard * bytes_of(type)),
                              .block_type = type,
                              .accumulator = rank.memory(on_device, shard * sizeof(float)),
                              .shard_elements = shard},
              shard, false);
        };
        const Reduced expected = reduced(false);
        const double link_s = rank.device.busy_s(SimEngines::Engine::kToHost);
        const Reduced got = reduced(true);
        EXPECT_TRUE(got.sum == expected.sum) << name_of(type) << " " << shard;
        EXPECT_EQ(got.norm.sum_of_squares, expected.norm.sum_of_squares);
        EXPECT_EQ(rank.device.busy_s(SimEngines::Engine::kToHost), link_s);
        EXPECT_GT(rank.device.busy_s(SimEngines::Engine::kCompute), 0);
      }
    }
  });
}

TEST(StagedBackend, AShardOnTheDeviceCrossesNoLinkOnOneRank) {
  on_device_ranks({1, true}, [](DeviceRank& rank) {
    for (const bool in_place : {false, true}) {
      gather(rank, 100'003, true, in_place);
    }
    EXPECT_EQ(rank.device.busy_s(SimEngines::Engine::kToHost), 0);
    EXPECT_EQ(rank.device.busy_s(SimEngines::Engine::kToDevice), 0);
  });
}

}  // namespace
}  // namespace tandem
