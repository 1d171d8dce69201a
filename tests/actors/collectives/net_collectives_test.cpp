// Every operation of a collective back end, over the simulated net with several seeds, over UCX and
// on `self`: what ends up where.
#include "tests/support/net_collectives.hpp"

#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/scope.hpp"
#include "runtime/sim/sim_net.hpp"
#include "runtime/sim/sim_pool.hpp"
#include "tests/support/actor_world.hpp"
#include "tests/support/net_ranks.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kElements = 1024;

float value_of(std::uint32_t rank, std::size_t i) {
  return (rank == 1 ? 1e8F : 1.0F) * static_cast<float>(i % 91 + 1) *
         (rank % 2 == 0 ? 0.3F : -0.7F);
}

/// The sum of the ranks' values from element `begin` on, added in rank order to what is there.
std::vector<float> expected_sum(std::uint32_t world, std::size_t begin, std::size_t count,
                                float start) {
  std::vector<float> sum(count, start);
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    for (std::size_t i = 0; i < count; ++i) {
      sum[i] += value_of(rank, begin + i);
    }
  }
  return sum;
}

GradientNorm norm_of(const std::vector<float>& values) {
  GradientNorm norm;
  add_norm(values.data(), DType::kF32, 0, values.size(), norm);
  return norm;
}

Task<> check_reductions(CollectiveBackend* backend) {
  const std::uint32_t world = backend->world();
  std::byte* block = backend->allocate(world * kElements * sizeof(float));
  for (std::size_t i = 0; i < world * kElements; ++i) {
    reinterpret_cast<float*>(block)[i] = value_of(backend->rank(), i);
  }
  std::vector<float> sum(kElements, 3.0F);
  ReduceArguments a{.block = block,
                    .accumulator = sum.data(),
                    .shard_elements = kElements,
                    .mode = AccumulateMode::kAdd,
                    .want_norm = true};
  GradientNorm norm = co_await backend->reduce_scatter_add(a);
  std::vector<float> expected = expected_sum(world, backend->rank() * kElements, kElements, 3.0F);
  EXPECT_EQ(sum, expected);
  EXPECT_EQ(norm.sum_of_squares, norm_of(expected).sum_of_squares);

  std::fill(sum.begin(), sum.end(), 5.0F);
  norm = co_await backend->all_reduce_add(a);
  expected = expected_sum(world, 0, kElements, 5.0F);
  EXPECT_EQ(sum, expected);
  EXPECT_EQ(norm.sum_of_squares, norm_of(expected).sum_of_squares);

  const std::uint64_t mine = 70 + backend->rank();
  std::vector<std::uint64_t> all(world);
  co_await backend->exchange(
      {reinterpret_cast<const std::byte*>(&mine), reinterpret_cast<std::byte*>(all.data()), 8});
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    EXPECT_EQ(all[rank], 70 + rank);
  }
  co_await backend->exchange({});
}

Task<> check_moves(CollectiveBackend* backend) {
  const std::uint32_t world = backend->world();
  const std::uint32_t rank = backend->rank();
  std::vector<std::uint32_t> shard(10, rank + 1);
  std::vector<std::uint32_t> block(10 * world);
  co_await backend->all_gather({reinterpret_cast<const std::byte*>(shard.data()),
                                reinterpret_cast<std::byte*>(block.data()), 40});
  for (std::size_t i = 0; i < block.size(); ++i) {
    EXPECT_EQ(block[i], i / 10 + 1);
  }
  auto* own = reinterpret_cast<std::byte*>(block.data() + std::size_t{10} * rank);
  co_await backend->all_gather({own, reinterpret_cast<std::byte*>(block.data()), 40});
  EXPECT_EQ(block.back(), world);

  std::vector<std::uint32_t> pieces(world);
  std::vector<std::uint32_t> got(world);
  for (std::uint32_t to = 0; to < world; ++to) {
    pieces[to] = 100 * rank + to;
  }
  co_await backend->all_to_all({reinterpret_cast<const std::byte*>(pieces.data()),
                                reinterpret_cast<std::byte*>(got.data()), 4});
  for (std::uint32_t from = 0; from < world; ++from) {
    EXPECT_EQ(got[from], 100 * from + rank);
  }
  for (std::uint32_t root = 0; root < world; ++root) {
    std::uint32_t word = 1000 + rank;
    co_await backend->broadcast({reinterpret_cast<std::byte*>(&word), 4, root});
    EXPECT_EQ(word, 1000 + root);
  }
}

Task<> check_both(CollectiveBackend* backend) {
  co_await with_scope(
      [](Scope& scope, CollectiveBackend* b) -> Task<> {
        scope.spawn("reductions", &check_reductions, b);
        scope.spawn("moves", &check_moves, b);
        co_return;
      },
      backend);
}

struct NetRank {
  NetRank(SimWorld& world, SimNet& links, std::uint32_t rank)
      : workers(world, rank, {.threads = 2}),
        pool(world.loop(rank), {.threads = 2, .driver = &workers}),
        net(links.attach(rank)),
        backend(net, pool),
        scope(world.loop(rank), Name("rank")) {
    scope.spawn("checks", &check_both, static_cast<CollectiveBackend*>(&backend));
  }
  SimPool workers;
  CpuPool pool;
  Net net;
  NetCollectives backend;
  Scope scope;
};

TEST(NetCollectives, EveryOperationForManySeeds) {
  for (const std::uint32_t count : {1U, 2U, 3U, 4U}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(seed);
      SimWorld world({.seed = seed, .ranks = count});
      SimNet links(world, {.latency = 20us});
      std::vector<std::unique_ptr<NetRank>> ranks;
      for (std::uint32_t rank = 0; rank < count; ++rank) {
        ranks.push_back(std::make_unique<NetRank>(world, links, rank));
      }
      const auto end = world.run([&] {
        return std::ranges::all_of(ranks, [](const auto& r) { return r->scope.running() == 0; });
      });
      EXPECT_EQ(end, SimWorld::End::kDone);
      for (const auto& rank : ranks) {
        EXPECT_TRUE(rank->scope.failures().empty());
      }
    }
  }
}

struct Nothing {};

TEST(NetCollectives, EveryOperationOverUcx) {
  if (!ucx_support().usable) {
    GTEST_SKIP() << "no UCX: " << ucx_support().what;
  }
  for (const std::uint32_t count : {2U, 3U, 4U}) {
    Nothing nothing;
    on_ucx_ranks(
        count,
        +[](Net* net, Nothing* /*shared*/) -> Task<> {
          CpuPool pool(EventLoop::current(), {.threads = 2});
          NetCollectives backend(*net, pool);
          co_await check_both(&backend);
        },
        &nothing);
  }
}

TEST(SelfBackend, EveryOperationOnOneRank) {
  testing::World world;
  SelfBackend backend(world.pool);
  world.loop.run(&check_both, static_cast<CollectiveBackend*>(&backend));
}

}  // namespace
}  // namespace tandem
