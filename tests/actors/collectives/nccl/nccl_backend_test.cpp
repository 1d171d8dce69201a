// Collectives between GPUs, on fakes of CUDA and NCCL, beside tests/actors/collectives/contract:
// no operation allocates.
#include "actors/collectives/nccl/nccl_backend.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "tests/actors/allocations.hpp"
#include "tests/support/nccl_world.hpp"

namespace tandem {
namespace {

using test::NcclRank;
using test::NcclWorld;

Task<> one_of_each(NcclRank* rank, DeviceBuffer* block, DeviceBuffer* sum, int times) {
  const std::uint32_t world = rank->backend->world();
  std::uint64_t mine = 7;
  std::array<std::uint64_t, 8> all{};
  const Placed from(Place::kDevice, block->data());
  const Placed into(Place::kDevice, sum->data());
  for (int i = 0; i < times; ++i) {
    const ReduceArguments reduce{
        .block = from, .accumulator = into, .shard_elements = 512 * 8, .want_norm = true};
    (void)co_await rank->backend->reduce_scatter_add(reduce);
    (void)co_await rank->backend->all_reduce_add(reduce);
    co_await rank->backend->all_gather({from, into, 512 * 8 * 4 / world});
    co_await rank->backend->all_to_all({from, into, 512});
    co_await rank->backend->exchange(
        {reinterpret_cast<const std::byte*>(&mine), reinterpret_cast<std::byte*>(all.data()), 8});
  }
}

TEST(NcclBackend, NothingIsAllocatedPerOperationAfterWarmUp) {
  if (!test::allocations_are_counted()) {
    GTEST_SKIP() << "under a sanitizer the runtime's pools reuse nothing";
  }
  NcclWorld w(2);
  w.nccl.questions = 2;
  w.connect();
  std::vector<DeviceBuffer> memory;
  for (NcclRank& rank : w.ranks) {
    memory.push_back(rank.buffer(std::size_t{512} * 8 * 4 * 2));
    memory.push_back(rank.buffer(std::size_t{512} * 8 * 4));
  }
  const auto rounds = [&](int times) {
    const std::int64_t before = test::allocations();
    w.run([&](NcclRank& rank) {
      const std::size_t at = rank.backend->rank() * 2;
      return one_of_each(&rank, &memory[at], &memory[at + 1], times);
    });
    return test::allocations() - before;
  };
  (void)rounds(5);
  const std::int64_t once = rounds(1);
  EXPECT_EQ(rounds(50), once) << "what the test's own run costs, however many operations it has";
  EXPECT_EQ(w.errors(), std::vector<std::string>(2));
}

}  // namespace
}  // namespace tandem
