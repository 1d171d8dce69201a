// Collectives over shared memory: the bits of `self`, whatever the number of ranks and wherever the
// operands lie.
#include "actors/collectives/shm/shm_backend.hpp"

#include <cmath>
#include <cstring>
#include <numeric>
#include <ostream>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "tests/support/reduction_reference.hpp"
#include "tests/support/shm_world.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using test::Expected;
using test::fill_block;
using test::mixed;
using test::run_ranks;
using test::ShmRank;

const std::vector<std::string> kNoErrors[] = {{}, {""}, {"", ""}, {"", "", ""}, {"", "", "", ""}};

/// Memory in the rank's arena or outside of it.
struct Memory {
  std::byte* data = nullptr;
  HostBuffer own;

  Memory(ShmRank& rank, bool shared, std::size_t bytes) {
    if (shared) {
      data = rank.backend->allocate(bytes);
    } else {
      own = HostBuffer(bytes);
      data = own.data();
    }
  }
  template <class T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data);
  }
};

struct Case {
  std::uint32_t world;
  DType type;
  bool shared;
};
void PrintTo(const Case& one, std::ostream* out) {
  *out << one.world << " ranks, " << name_of(one.type) << (one.shared ? ", shared" : ", staged");
}
// One block; a little beyond a chunk of the pool; several steps of the stage.
constexpr std::size_t kShards[] = {512, 512 * 131, 512 * 1200};

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return fmt::format("{}ranks_{}_{}", c.world, name_of(c.type), c.shared ? "shared" : "staged");
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::uint32_t world : {1U, 2U, 3U, 4U}) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      cases.push_back({world, type, true});
      cases.push_back({world, type, false});
    }
  }
  return cases;
}

class ShmReductions : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, ShmReductions, ::testing::ValuesIn(all_cases()), name_of_case);

Task<> reduce_rounds(ShmRank* rank, ReduceArguments a, std::size_t elements, GradientNorm* norm,
                     bool all) {
  for (std::uint32_t round = 0; round < 2; ++round) {
    fill_block(const_cast<std::byte*>(a.block.host()), a.block_type, elements,
               rank->backend->rank(), round);
    a.mode = round == 0 ? AccumulateMode::kOverwrite : AccumulateMode::kAdd;
    a.want_norm = round == 1;
    *norm = all ? co_await rank->backend->all_reduce_add(a)
                : co_await rank->backend->reduce_scatter_add(a);
  }
}

void check_reduce_scatter(const Case& c, std::size_t shard) {
  SCOPED_TRACE(shard);
  const Expected expected(c.world, c.type, shard * c.world, 2);
  std::vector<GradientNorm> norms(c.world);
  const auto errors = run_ranks(c.world, [&](ShmRank& rank) {
    const std::uint32_t r = rank.backend->rank();
    const std::size_t elements = shard * c.world;
    Memory block(rank, c.shared, elements * bytes_of(c.type));
    std::vector<float> sum(shard + 1, 42.0F);
    const ReduceArguments a{.block = block.data,
                            .block_type = c.type,
                            .accumulator = sum.data(),
                            .shard_elements = shard};
    rank.loop.run(&reduce_rounds, &rank, a, elements, &norms[r], false);
    EXPECT_EQ(0, std::memcmp(sum.data(), expected.sum.data() + r * shard, shard * 4)) << r;
    EXPECT_EQ(sum.back(), 42.0F);
  });
  EXPECT_EQ(errors, kNoErrors[c.world]);
  GradientNorm all;
  for (const GradientNorm& norm : norms) {
    all.merge(norm);
  }
  EXPECT_EQ(all.sum_of_squares, expected.norm.sum_of_squares);
}

void check_all_reduce(const Case& c, std::size_t elements) {
  SCOPED_TRACE(elements);
  const Expected expected(c.world, c.type, elements, 2);
  const auto errors = run_ranks(c.world, [&](ShmRank& rank) {
    Memory block(rank, c.shared, elements * bytes_of(c.type));
    Memory sum(rank, c.shared, elements * 4 + 4);
    sum.as<float>()[elements] = 42.0F;
    GradientNorm norm;
    const ReduceArguments a{.block = block.data,
                            .block_type = c.type,
                            .accumulator = sum.data,
                            .shard_elements = elements};
    rank.loop.run(&reduce_rounds, &rank, a, elements, &norm, true);
    EXPECT_EQ(0, std::memcmp(sum.data, expected.sum.data(), elements * 4));
    EXPECT_EQ(sum.as<float>()[elements], 42.0F);
    EXPECT_EQ(norm.sum_of_squares, expected.norm.sum_of_squares);
  });
  EXPECT_EQ(errors, kNoErrors[c.world]);
}

TEST_P(ShmReductions, ScatterTheBitsOfMicroSteps) {
  for (const std::size_t shard : kShards) {
    check_reduce_scatter(GetParam(), shard);
  }
}

TEST_P(ShmReductions, AllReduceToTheSameBitsEverywhere) {
  for (const std::size_t shard : kShards) {
    check_all_reduce(GetParam(), shard);
  }
}

struct Moved {
  std::uint32_t world;
  bool shared;
};
void PrintTo(const Moved& one, std::ostream* out) {
  *out << one.world << " ranks, " << (one.shared ? "shared" : "staged");
}
// Nothing, odd, on and around the boundaries of a chunk (256 KiB), several steps of the stage (1
// MiB).
constexpr std::size_t kMoves[] = {0, 1, 1001, 262'144, 262'145, 1'048'577, 3'000'001};

class ShmMoves : public ::testing::TestWithParam<Moved> {};
INSTANTIATE_TEST_SUITE_P(All, ShmMoves,
                         ::testing::Values(Moved{1, true}, Moved{1, false}, Moved{2, true},
                                           Moved{2, false}, Moved{3, true}, Moved{3, false},
                                           Moved{4, true}, Moved{4, false}),
                         [](const ::testing::TestParamInfo<Moved>& info) {
                           return fmt::format("{}ranks_{}", info.param.world,
                                              info.param.shared ? "shared" : "staged");
                         });

std::byte byte_of(std::uint32_t from, std::uint32_t to, std::size_t i) {
  return static_cast<std::byte>(mixed(static_cast<std::uint32_t>(i) + 1000 * from + 77 * to));
}

void run_gather(ShmRank& rank, GatherArguments arguments) {
  rank.loop.run([](ShmBackend* b, GatherArguments a) -> Task<> { co_await b->all_gather(a); },
                rank.backend.get(), arguments);
}

void gather_shards(ShmRank& rank, bool shared, std::size_t bytes) {
  const std::uint32_t r = rank.backend->rank();
  const std::size_t all = bytes * rank.backend->world();
  Memory shard(rank, shared, bytes + 1);
  std::vector<std::byte> block(all + 1, std::byte{9});
  for (std::size_t i = 0; i < bytes; ++i) {
    shard.data[i] = byte_of(r, 0, i);
  }
  run_gather(rank, {shard.data, block.data(), bytes});
  for (std::size_t i = 0; i < all; ++i) {
    ASSERT_EQ(block[i], byte_of(static_cast<std::uint32_t>(i / bytes), 0, i % bytes)) << i;
  }
  EXPECT_EQ(block.back(), std::byte{9});
}

void gather_in_place(ShmRank& rank, bool shared, std::size_t bytes) {
  const std::size_t all = bytes * rank.backend->world();
  Memory block(rank, shared, all + 1);
  std::byte* own = block.data + rank.backend->rank() * bytes;
  for (std::size_t i = 0; i < bytes; ++i) {
    own[i] = byte_of(rank.backend->rank(), 0, i);
  }
  run_gather(rank, {own, block.data, bytes});
  for (std::size_t i = 0; i < all; ++i) {
    ASSERT_EQ(block.data[i], byte_of(static_cast<std::uint32_t>(i / bytes), 0, i % bytes)) << i;
  }
}

void swap_and_broadcast(ShmRank& rank, bool shared, std::size_t bytes) {
  const std::uint32_t r = rank.backend->rank();
  const std::size_t all = bytes * rank.backend->world();
  Memory from(rank, shared, all + 1);
  std::vector<std::byte> into(all + 1, std::byte{9});
  for (std::size_t i = 0; i < all; ++i) {
    from.data[i] = byte_of(r, static_cast<std::uint32_t>(i / bytes), i % bytes);
  }
  rank.loop.run([](ShmBackend* b, AllToAllArguments a) -> Task<> { co_await b->all_to_all(a); },
                rank.backend.get(), AllToAllArguments{from.data, into.data(), bytes});
  for (std::size_t i = 0; i < all; ++i) {
    ASSERT_EQ(into[i], byte_of(static_cast<std::uint32_t>(i / bytes), r, i % bytes)) << i;
  }
  EXPECT_EQ(into.back(), std::byte{9});
  for (std::uint32_t root = 0; root < rank.backend->world(); ++root) {
    std::byte* data = root == r ? from.data : into.data();
    rank.loop.run([](ShmBackend* b, BroadcastArguments a) -> Task<> { co_await b->broadcast(a); },
                  rank.backend.get(), BroadcastArguments{data, bytes, root});
    for (std::size_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(data[i], byte_of(root, 0, i)) << i;
    }
  }
}

TEST_P(ShmMoves, ArriveWhole) {
  const Moved moved = GetParam();
  const auto errors = run_ranks(moved.world, [&](ShmRank& rank) {
    for (const std::size_t bytes : kMoves) {
      gather_shards(rank, moved.shared, bytes);
      gather_in_place(rank, moved.shared, bytes);
      swap_and_broadcast(rank, moved.shared, bytes);
    }
  });
  EXPECT_EQ(errors, kNoErrors[moved.world]);
}

// The heartbeat's timer is due behind the last task's, and waits in the loop's queue, which
// outlives the back end.
TEST(ShmBackend, EndsWhileItsHeartbeatIsDue) {
  ShmBackend::Options options;
  options.heartbeat = std::chrono::milliseconds(40);  // the timer's time is half of it
  const auto errors = run_ranks(
      1,
      [](ShmRank& rank) {
        Scope scope(rank.loop);
        scope.spawn("keeps the loop", []() -> Task<> {
          co_await sleep_for(std::chrono::microseconds(50));
          std::this_thread::sleep_for(std::chrono::milliseconds(60));
        });
        rank.loop.run([]() -> Task<> { co_await sleep_for(std::chrono::milliseconds(5)); });
      },
      options);
  EXPECT_EQ(errors, kNoErrors[1]);
}

TEST(ShmBackend, OneRankOutsideOfItsArenaIsEnough) {
  const std::size_t bytes = 3'000'000;
  const auto errors = run_ranks(3, [&](ShmRank& rank) {
    const std::uint32_t r = rank.backend->rank();
    Memory shard(rank, r != 1, bytes);
    std::memset(shard.data, static_cast<int>(r) + 1, bytes);
    std::vector<std::byte> block(3 * bytes);
    run_gather(rank, {shard.data, block.data(), bytes});
    for (std::size_t i = 0; i < 3 * bytes; ++i) {
      ASSERT_EQ(block[i], static_cast<std::byte>(i / bytes + 1));
    }
  });
  EXPECT_EQ(errors, kNoErrors[3]);
}

Task<> many_gathers(ShmRank* rank, std::byte* shard, std::byte* block, std::size_t bytes) {
  for (int round = 0; round < 60; ++round) {
    std::memset(shard, round + 1 + static_cast<int>(rank->backend->rank()), bytes);
    co_await rank->backend->all_gather({shard, block, bytes});
    for (std::size_t i = 0; i < rank->backend->world() * bytes; i += 97) {
      EXPECT_EQ(block[i], static_cast<std::byte>(round + 1 + static_cast<int>(i / bytes)));
    }
  }
}

Task<> many_reductions(ShmRank* rank, std::byte* block, std::size_t shard) {
  const std::uint32_t world = rank->backend->world();
  std::vector<float> sum(shard);
  std::vector<std::uint64_t> words(world);
  for (std::uint64_t round = 0; round < 60; ++round) {
    auto* values = reinterpret_cast<float*>(block);
    std::fill_n(values, shard * world, static_cast<float>(round + rank->backend->rank()));
    (void)co_await rank->backend->reduce_scatter_add(
        {.block = block, .accumulator = sum.data(), .shard_elements = shard});
    EXPECT_EQ(sum[shard / 2], static_cast<float>(round * world + world * (world - 1) / 2));
    const std::uint64_t mine = round * 100 + rank->backend->rank();
    co_await rank->backend->exchange(
        {reinterpret_cast<const std::byte*>(&mine), reinterpret_cast<std::byte*>(words.data()), 8});
    for (std::uint32_t r = 0; r < world; ++r) {
      EXPECT_EQ(words[r], round * 100 + r);
    }
    co_await rank->backend->exchange({});
  }
}

TEST(ShmBackend, GathersAndReductionsRunAtTheSameTime) {
  for (const bool shared : {true, false}) {
    const auto errors = run_ranks(4, [&](ShmRank& rank) {
      const std::size_t shard = 512 * 64;
      Memory weights(rank, shared, 100'000);
      Memory gradients(rank, shared, shard * 4 * 4);
      std::vector<std::byte> block(4 * 100'000);
      rank.loop.run(
          [](ShmRank* r, std::byte* w, std::byte* b, std::byte* g) -> Task<> {
            co_await with_scope(
                [](Scope& scope, ShmRank* r2, std::byte* w2, std::byte* b2,
                   std::byte* g2) -> Task<> {
                  scope.spawn("gathers", &many_gathers, r2, w2, b2, std::size_t{100'000});
                  scope.spawn("reductions", &many_reductions, r2, g2, std::size_t{512 * 64});
                  co_return;
                },
                r, w, b, g);
          },
          &rank, weights.data, block.data(), gradients.data);
    });
    EXPECT_EQ(errors, kNoErrors[4]);
  }
}

Task<> many_exchanges(ShmBackend* backend, std::uint64_t times) {
  std::vector<std::uint64_t> all(backend->world());
  for (std::uint64_t i = 0; i < times; ++i) {
    const std::uint64_t mine = i * 10 + backend->rank();
    co_await backend->exchange({reinterpret_cast<const std::byte*>(&mine),
                                reinterpret_cast<std::byte*>(all.data()), sizeof(mine)});
    EXPECT_EQ(all.back(), i * 10 + backend->world() - 1);
  }
}

// Without a spin every wait is a sleep, so that each of many thousand has to be ended by a peer.
// One that is not ends the test by its deadline.
TEST(ShmBackend, SleepersAreAlwaysWoken) {
  const auto errors = run_ranks(
      4,
      [](ShmRank& rank) {
        rank.loop.run(&many_exchanges, rank.backend.get(), std::uint64_t{5000});
      },
      {.timeout = std::chrono::seconds(20)}, Spin::kNever);
  EXPECT_EQ(errors, kNoErrors[4]);
}

TEST(ShmBackend, TheFirstBadElementIsNamed) {
  const std::size_t n = 512 * 300;
  const auto errors = run_ranks(3, [&](ShmRank& rank) {
    Memory block(rank, true, n * 4);
    std::vector<float> sum(n);
    if (rank.backend->rank() == 1) {
      block.as<float>()[n - 5] = std::nanf("");
      block.as<float>()[512 * 200 + 7] = INFINITY;
    }
    const ReduceArguments a{
        .block = block.data, .accumulator = sum.data(), .shard_elements = n, .want_norm = true};
    const GradientNorm norm = rank.loop.run(
        [](ShmBackend* b, ReduceArguments r) -> Task<GradientNorm> {
          co_return co_await b->all_reduce_add(r);
        },
        rank.backend.get(), a);
    EXPECT_EQ(norm.first_bad_element, 512 * 200 + 7);
    EXPECT_FALSE(norm.sum_of_squares.is_finite());
  });
  EXPECT_EQ(errors, kNoErrors[3]);
}

TEST(ShmBackend, MemoryIsZeroedAlignedAndBounded) {
  const auto errors =
      run_ranks(2,
                [&](ShmRank& rank) {
                  std::byte* small = rank.backend->allocate(100);
                  std::byte* large = rank.backend->allocate(std::size_t{4} << 20);
                  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(small) % 4096, 0U);
                  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large) % (2 << 20), 0U);
                  EXPECT_TRUE(std::all_of(large, large + (4 << 20),
                                          [](std::byte b) { return b == std::byte{0}; }));
                  EXPECT_THAT([&] { (void)rank.backend->allocate(std::size_t{64} << 20); },
                              ThrowsError(ExitCode::kRefused));
                },
                {.arena_bytes = std::size_t{16} << 20});
  EXPECT_EQ(errors, kNoErrors[2]);
}

}  // namespace
}  // namespace tandem
