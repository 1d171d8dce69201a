// Collectives between GPUs, on fakes of CUDA and NCCL: the bits of `self`, in one order on all
// ranks, and no event before NCCL has put the work into the stream.
#include "actors/collectives/nccl/nccl_backend.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/sleep.hpp"
#include "tests/actors/allocations.hpp"
#include "tests/support/nccl_world.hpp"
#include "tests/support/reduction_reference.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::Expected;
using test::fill_block;
using test::mixed;
using test::NcclRank;
using test::NcclWorld;

struct Case {
  std::uint32_t world;
  DType type;
  int questions;  // until NCCL is no longer in progress
};
void PrintTo(const Case& one, std::ostream* out) {
  *out << one.world << " ranks, " << name_of(one.type) << ", " << one.questions << " questions";
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  return fmt::format("{}ranks_{}_{}", info.param.world, name_of(info.param.type),
                     info.param.questions == 0 ? "at_once" : "in_progress");
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::uint32_t world : {1U, 2U, 3U, 4U}) {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      cases.push_back({world, type, 0});
      cases.push_back({world, type, 3});
    }
  }
  return cases;
}

class NcclReductions : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, NcclReductions, ::testing::ValuesIn(all_cases()), name_of_case);

// One block; more than a piece of the workspace (64 KiB over the ranks), with a ragged end.
constexpr std::size_t kShards[] = {512, 512 * 67};

struct Reduction {
  NcclRank* rank;
  DType type;
  std::size_t elements;  // in the block
  std::size_t shard;     // in the accumulator
  bool all;
  std::vector<float>* sum;
  GradientNorm* norm;
};

/// Two micro-steps, overwriting and adding; the norm of the second.
Task<> reduce_twice(Reduction r) {
  DeviceBuffer block = r.rank->buffer(r.elements * bytes_of(r.type));
  DeviceBuffer sum = r.rank->buffer(r.shard * 4 + 4);
  for (std::uint32_t round = 0; round < 2; ++round) {
    fill_block(block.data(), r.type, r.elements, r.rank->backend->rank(), round);
    const ReduceArguments a{.block = block.data(),
                            .block_type = r.type,
                            .accumulator = sum.data(),
                            .shard_elements = r.shard,
                            .mode = round == 0 ? AccumulateMode::kOverwrite : AccumulateMode::kAdd,
                            .want_norm = round == 1};
    *r.norm = r.all ? co_await r.rank->backend->all_reduce_add(a)
                    : co_await r.rank->backend->reduce_scatter_add(a);
  }
  r.sum->resize(r.shard + 1);
  std::memcpy(r.sum->data(), sum.data(), r.shard * 4 + 4);
}

struct Reduced {
  std::vector<std::vector<float>> sums;
  std::vector<GradientNorm> norms;
};

Reduced reduce(NcclWorld& w, DType type, std::size_t elements, std::size_t shard, bool all) {
  Reduced out{std::vector<std::vector<float>>(w.ranks.size()),
              std::vector<GradientNorm>(w.ranks.size())};
  w.run([&](NcclRank& rank) {
    const std::uint32_t r = rank.backend->rank();
    return reduce_twice({&rank, type, elements, shard, all, &out.sums[r], &out.norms[r]});
  });
  return out;
}

float poison() {
  std::uint32_t bits = 0xA5A5A5A5U;
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}

TEST_P(NcclReductions, ScatterTheBitsOfMicroSteps) {
  const Case c = GetParam();
  NcclWorld w(c.world);
  w.nccl.questions = c.questions;
  w.connect();
  for (const std::size_t shard : kShards) {
    const Expected expected(c.world, c.type, shard * c.world, 2);
    const Reduced got = reduce(w, c.type, shard * c.world, shard, false);
    EXPECT_EQ(w.errors(), std::vector<std::string>(c.world));
    GradientNorm norm;
    for (std::uint32_t r = 0; r < c.world; ++r) {
      EXPECT_EQ(0, std::memcmp(got.sums[r].data(), expected.sum.data() + r * shard, shard * 4));
      EXPECT_EQ(got.sums[r].back(), poison()) << "written beyond its end";
      norm.merge(got.norms[r]);
    }
    EXPECT_EQ(norm.sum_of_squares, expected.norm.sum_of_squares);
    EXPECT_EQ(norm.first_bad_element, -1);
  }
  EXPECT_TRUE(w.nccl.mismatches().empty());
}

// 512 * 67 elements fill the slices of 1 and no other number of ranks evenly.
TEST_P(NcclReductions, AllReduceToTheSameBitsEverywhere) {
  const Case c = GetParam();
  NcclWorld w(c.world);
  w.nccl.questions = c.questions;
  w.connect();
  for (const std::size_t elements :
       {std::size_t{512}, std::size_t{512} * 67, std::size_t{512} * 12}) {
    SCOPED_TRACE(elements);
    const Expected expected(c.world, c.type, elements, 2);
    const Reduced got = reduce(w, c.type, elements, elements, true);
    EXPECT_EQ(w.errors(), std::vector<std::string>(c.world));
    for (std::uint32_t r = 0; r < c.world; ++r) {
      EXPECT_EQ(0, std::memcmp(got.sums[r].data(), expected.sum.data(), elements * 4));
      EXPECT_EQ(got.sums[r].back(), poison());
      EXPECT_EQ(got.norms[r].sum_of_squares, expected.norm.sum_of_squares);
    }
  }
  EXPECT_TRUE(w.nccl.mismatches().empty());
}

/// Returns two rounds of NCCL's own sums, as the fakes make them: from the last rank to the first,
/// rounded to the type, and then added.
std::vector<float> own_sums_of(std::uint32_t world, DType type, std::size_t n) {
  std::vector<float> all(n), sum(n);
  std::vector<std::byte> block(n * bytes_of(type));
  for (std::uint32_t round = 0; round < 2; ++round) {
    for (std::uint32_t rank = world; rank-- > 0;) {
      fill_block(block.data(), type, n, rank, round);
      accumulate(sum.data(), block.data(), type, 0, n,
                 rank + 1 == world ? AccumulateMode::kOverwrite : AccumulateMode::kAdd);
    }
    cast(sum.data(), DType::kF32, block.data(), type, 0, n);
    accumulate(all.data(), block.data(), type, 0, n,
               round == 0 ? AccumulateMode::kOverwrite : AccumulateMode::kAdd);
  }
  return all;
}

TEST_P(NcclReductions, AreNcclsOwnSumsWhereTheyAreAskedFor) {
  const Case c = GetParam();
  NcclWorld w(c.world);
  w.nccl.questions = c.questions;
  w.connect([](NcclBackend::Options& options) { options.own_sums = true; });
  for (const std::size_t shard : kShards) {
    SCOPED_TRACE(shard);
    const std::size_t all = shard * c.world;
    const std::vector<float> expected = own_sums_of(c.world, c.type, all);
    EXPECT_TRUE(c.world == 1 || expected != Expected(c.world, c.type, all, 2).sum);
    const Reduced scattered = reduce(w, c.type, all, shard, false);
    EXPECT_EQ(w.errors(), std::vector<std::string>(c.world));
    const Reduced whole = reduce(w, c.type, all, all, true);
    EXPECT_EQ(w.errors(), std::vector<std::string>(c.world));
    GradientNorm norm;
    GradientNorm expected_norm;
    add_norm(expected.data(), DType::kF32, 0, all, expected_norm);
    for (std::uint32_t r = 0; r < c.world; ++r) {
      EXPECT_EQ(0, std::memcmp(scattered.sums[r].data(), expected.data() + r * shard, shard * 4));
      EXPECT_EQ(0, std::memcmp(whole.sums[r].data(), expected.data(), all * 4));
      EXPECT_EQ(scattered.sums[r].back(), poison());
      EXPECT_EQ(whole.sums[r].back(), poison());
      EXPECT_EQ(whole.norms[r].sum_of_squares, expected_norm.sum_of_squares);
      norm.merge(scattered.norms[r]);
    }
    EXPECT_EQ(norm.sum_of_squares, expected_norm.sum_of_squares);
  }
  EXPECT_TRUE(w.nccl.mismatches().empty());
}

// At world 1 a 16-bit gradient may be kept as it is.
TEST(NcclBackend, OneRankKeepsSixteenBits) {
  NcclWorld w(1);
  w.connect();
  constexpr std::size_t kElements = 512 * 5;
  for (const DType type : {DType::kBF16, DType::kF16}) {
    std::vector<std::byte> values(kElements * 2);
    fill_block(values.data(), type, kElements, 0, 0);
    GradientNorm expected;
    add_norm(values.data(), type, 0, kElements, expected);
    w.run([&](NcclRank& rank) -> Task<> {
      return [](NcclRank* r, DType t, const std::vector<std::byte>* v,
                const GradientNorm* e) -> Task<> {
        const DeviceBuffer block = r->buffer(v->size(), v->data());
        const DeviceBuffer into = r->buffer(v->size());
        // The second time it is there already, and only the norm is taken.
        for (const std::byte* from : {block.data(), into.data()}) {
          const GradientNorm norm =
              co_await r->backend->reduce_scatter_add({.block = from,
                                                       .block_type = t,
                                                       .accumulator = into.data(),
                                                       .accumulator_type = t,
                                                       .shard_elements = v->size() / 2,
                                                       .want_norm = true});
          EXPECT_EQ(0, std::memcmp(into.data(), v->data(), v->size()));
          EXPECT_EQ(norm.sum_of_squares, e->sum_of_squares);
        }
      }(&rank, type, &values, &expected);
    });
    EXPECT_EQ(w.errors(), std::vector<std::string>(1));
  }
}

TEST(NcclBackend, TheFirstBadElementIsNamed) {
  NcclWorld w(3);
  w.connect();
  constexpr std::size_t kElements = std::size_t{512} * 300;
  w.run([](NcclRank& rank) -> Task<> {
    return [](NcclRank* r) -> Task<> {
      std::vector<float> values(kElements);
      if (r->backend->rank() == 1) {
        values[kElements - 5] = std::nanf("");
        values[512 * 200 + 7] = INFINITY;
      }
      const DeviceBuffer block = r->buffer(kElements * 4, values.data());
      const DeviceBuffer sum = r->buffer(kElements * 4);
      const GradientNorm norm = co_await r->backend->all_reduce_add({.block = block.data(),
                                                                     .accumulator = sum.data(),
                                                                     .shard_elements = kElements,
                                                                     .want_norm = true});
      EXPECT_EQ(norm.first_bad_element, 512 * 200 + 7);
      EXPECT_FALSE(norm.sum_of_squares.is_finite());
    }(&rank);
  });
  EXPECT_EQ(w.errors(), std::vector<std::string>(3));
}

// ---- moves ----
std::byte byte_of(std::uint32_t from, std::uint32_t to, std::size_t i) {
  return static_cast<std::byte>(mixed(static_cast<std::uint32_t>(i) + 1000 * from + 77 * to));
}

void expect_bytes(const std::byte* got, std::size_t world, std::size_t bytes, auto expected) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < world * bytes; ++i) {
    wrong += got[i] != expected(static_cast<std::uint32_t>(i / bytes), i % bytes) ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(got[world * bytes], std::byte{0xA5}) << "written beyond its end";
}

/// Every move once; `pinned`: the shard lies in memory of allocate(), which the device reaches.
Task<> move_all(NcclRank* rank, std::size_t bytes, bool pinned) {
  NcclBackend& backend = *rank->backend;
  const std::uint32_t r = backend.rank();
  const std::uint32_t world = backend.world();
  const DeviceBuffer own = rank->buffer(bytes);
  std::byte* const shard = pinned ? backend.allocate(bytes) : own.data();
  for (std::size_t i = 0; i < bytes; ++i) {
    shard[i] = byte_of(r, 0, i);
  }
  const DeviceBuffer block = rank->buffer(bytes * world + 1);
  co_await backend.all_gather({shard, block.data(), bytes});
  const auto gathered = [](std::uint32_t from, std::size_t i) { return byte_of(from, 0, i); };
  expect_bytes(block.data(), world, bytes, gathered);

  const DeviceBuffer in_place = rank->buffer(bytes * world + 1);
  std::memcpy(in_place.data() + r * bytes, shard, bytes);
  co_await backend.all_gather({in_place.data() + r * bytes, in_place.data(), bytes});
  expect_bytes(in_place.data(), world, bytes, gathered);

  const DeviceBuffer whole = rank->buffer(bytes + 1);
  co_await backend.all_gather({shard, whole.data(), bytes, true});
  expect_bytes(whole.data(), 1, bytes,
               [r](std::uint32_t, std::size_t i) { return byte_of(r, 0, i); });

  const DeviceBuffer from = rank->buffer(bytes * world);
  const DeviceBuffer into = rank->buffer(bytes * world + 1);
  for (std::size_t i = 0; i < bytes * world; ++i) {
    from.data()[i] = byte_of(r, static_cast<std::uint32_t>(i / bytes), i % bytes);
  }
  co_await backend.all_to_all({from.data(), into.data(), bytes});
  expect_bytes(into.data(), world, bytes,
               [r](std::uint32_t sender, std::size_t i) { return byte_of(sender, r, i); });

  for (std::uint32_t root = 0; root < world; ++root) {
    std::byte* const data = root == r ? from.data() : into.data();
    co_await backend.broadcast({data, bytes, root});
    for (std::size_t i = 0; i < bytes; ++i) {
      EXPECT_EQ(data[i], byte_of(root, 0, i)) << i;
    }
  }
}

Task<> exchange_small(NcclRank* rank) {
  NcclBackend& backend = *rank->backend;
  std::vector<std::uint64_t> all(backend.world());
  for (std::uint64_t round = 0; round < 3; ++round) {
    const std::uint64_t mine = round * 100 + backend.rank();
    co_await backend.exchange({reinterpret_cast<const std::byte*>(&mine),
                               reinterpret_cast<std::byte*>(all.data()), sizeof(mine)});
    for (std::uint32_t r = 0; r < backend.world(); ++r) {
      EXPECT_EQ(all[r], round * 100 + r);
    }
    co_await backend.exchange({});
  }
  std::vector<std::byte> most(kExchangeBytes,
                              std::byte{static_cast<unsigned char>(backend.rank())});
  std::vector<std::byte> of_all(kExchangeBytes * backend.world());
  co_await backend.exchange({most.data(), of_all.data(), kExchangeBytes});
  EXPECT_EQ(of_all.back(), std::byte{static_cast<unsigned char>(backend.world() - 1)});
}

TEST(NcclBackend, MovesArriveWhole) {
  for (const std::uint32_t world : {1U, 2U, 3U, 4U}) {
    for (const int questions : {0, 2}) {
      NcclWorld w(world);
      w.nccl.questions = questions;
      w.connect();
      for (const std::size_t bytes : {0, 1, 1001, 30'001}) {
        for (const bool pinned : {false, true}) {
          w.run([=](NcclRank& rank) { return move_all(&rank, bytes, pinned); });
          EXPECT_EQ(w.errors(), std::vector<std::string>(world));
        }
      }
      w.run([](NcclRank& rank) { return exchange_small(&rank); });
      EXPECT_EQ(w.errors(), std::vector<std::string>(world));
      EXPECT_TRUE(w.nccl.mismatches().empty());
    }
  }
}

// ---- order ----
Task<> gathers(NcclRank* rank, std::uint32_t seed, int times) {
  const DeviceBuffer shard = rank->buffer(2000);
  const DeviceBuffer block = rank->buffer(2000 * rank->backend->world());
  for (int i = 0; i < times; ++i) {
    co_await sleep_for(
        std::chrono::microseconds(mixed(seed + static_cast<std::uint32_t>(i)) % 200));
    std::memset(shard.data(), i + static_cast<int>(rank->backend->rank()), 2000);
    co_await rank->backend->all_gather({shard.data(), block.data(), 2000});
    for (std::uint32_t r = 0; r < rank->backend->world(); ++r) {
      EXPECT_EQ(block.data()[r * 2000 + 1999], static_cast<std::byte>(i + static_cast<int>(r)));
    }
  }
}

Task<> reductions(NcclRank* rank, std::uint32_t seed, int times) {
  const std::uint32_t world = rank->backend->world();
  const DeviceBuffer block = rank->buffer(std::size_t{512} * 4 * world);
  const DeviceBuffer sum = rank->buffer(512 * 4);
  for (int i = 0; i < times; ++i) {
    co_await sleep_for(
        std::chrono::microseconds(mixed(seed - static_cast<std::uint32_t>(i)) % 200));
    std::fill_n(reinterpret_cast<float*>(block.data()), 512 * world,
                static_cast<float>(i) + static_cast<float>(rank->backend->rank()));
    (void)co_await rank->backend->reduce_scatter_add(
        {.block = block.data(), .accumulator = sum.data(), .shard_elements = 512});
    EXPECT_EQ(reinterpret_cast<float*>(sum.data())[511],
              static_cast<float>(static_cast<std::uint32_t>(i) * world + world * (world - 1) / 2));
  }
}

// Both sequences of every rank come when they like; what NCCL sees is one order. Times are chosen
// so that the ranks' own orders differ, which the test makes sure of.
TEST(NcclBackend, LaunchesAreInOneOrderOnAllRanks) {
  for (const int questions : {0, 3}) {
    NcclWorld w(4);
    w.nccl.questions = questions;
    w.connect();
    w.run([&w](NcclRank& rank) -> Task<> {
      return [](NcclRank* r, Scope* scope) -> Task<> {
        const std::uint32_t seed = 1000 * (r->backend->rank() + 1);
        scope->spawn("gathers", &gathers, r, seed, 100);
        scope->spawn("reductions", &reductions, r, seed + 500, 100);
        co_return;
      }(&rank, &w.scope);
    });
    EXPECT_EQ(w.errors(), std::vector<std::string>(4));
    EXPECT_TRUE(w.scope.failures().empty());
    EXPECT_TRUE(w.nccl.mismatches().empty());
    const std::vector<std::string> first = w.nccl.launches(0);
    EXPECT_EQ(first.size(), 200U);
    for (std::uint32_t r = 1; r < 4; ++r) {
      EXPECT_EQ(w.nccl.launches(r), first);
    }
    std::size_t turns = 0;  // from one communicator to the other
    for (std::size_t i = 1; i < first.size(); ++i) {
      turns += first[i] != first[i - 1] ? 1 : 0;
    }
    EXPECT_GT(turns, 50U) << "the sequences do not mix: nothing was shown";
  }
}

Task<> one_of_each(NcclRank* rank, DeviceBuffer* block, DeviceBuffer* sum, int times) {
  const std::uint32_t world = rank->backend->world();
  std::uint64_t mine = 7;
  std::array<std::uint64_t, 8> all{};
  for (int i = 0; i < times; ++i) {
    const ReduceArguments reduce{.block = block->data(),
                                 .accumulator = sum->data(),
                                 .shard_elements = 512 * 8,
                                 .want_norm = true};
    (void)co_await rank->backend->reduce_scatter_add(reduce);
    (void)co_await rank->backend->all_reduce_add(reduce);
    co_await rank->backend->all_gather({block->data(), sum->data(), 512 * 8 * 4 / world});
    co_await rank->backend->broadcast({block->data(), 1000, 1});
    co_await rank->backend->all_to_all({block->data(), sum->data(), 512});
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

TEST(NcclBackend, LeavesNothingBehind) {
  NcclWorld w(3);
  w.connect();
  w.run([](NcclRank& rank) { return exchange_small(&rank); });
  EXPECT_EQ(w.nccl.live(), 6);
  w.ranks.clear();
  EXPECT_EQ(w.nccl.live(), 0);
  EXPECT_EQ(w.nccl.aborted(), 0);
  EXPECT_EQ(w.cuda.used_bytes(), 0U);
  EXPECT_EQ(w.cuda.live_streams(), 0);
}

}  // namespace
}  // namespace tandem
