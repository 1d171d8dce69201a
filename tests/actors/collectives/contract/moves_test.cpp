// All-gathers, all-to-alls and exchanges of every back end: each byte arrives at its place and
// none is written elsewhere, at any size, wherever the operands lie, with both sequences at once.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>

#include <gtest/gtest.h>

#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "tests/actors/collectives/contract/contract_case.hpp"
#include "tests/support/reduction_reference.hpp"

namespace tandem::test {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

class CollectiveMoves : public ContractTest {
 protected:
  /// Nothing, odd sizes, those around the boundary of a message with the header, around that of a
  /// buffer, and several buffers.
  static std::vector<std::size_t> sizes() {
    const std::size_t buffer = backend().buffer_bytes;
    constexpr std::size_t kFileBlock = 4096;
    std::set<std::size_t> all = {0,
                                 1,
                                 1001,
                                 kExchangeBytes,
                                 kExchangeBytes + 1,
                                 buffer - 1,
                                 buffer + 1,
                                 backend().large_bytes};
    if (!why_not(Promise::kMovesAnySize).empty()) {
      std::set<std::size_t> whole;
      for (const std::size_t bytes : all) {
        whole.insert(bytes / kFileBlock * kFileBlock);
      }
      all = whole;
    }
    return {all.begin(), all.end()};
  }
};
INSTANTIATE_TEST_SUITE_P(Collectives, CollectiveMoves, ::testing::ValuesIn(contract_cases()),
                         name_of_case);

/// Repeats after a number of bytes that is no multiple of any buffer's.
Bytes content(std::uint32_t from, std::uint32_t to, std::size_t bytes) {
  constexpr std::size_t kPeriod = 65'521;
  static const Bytes kNumbers = [] {
    Bytes made(kPeriod);
    for (std::size_t i = 0; i < kPeriod; ++i) {
      made[i] = static_cast<std::byte>(mixed(static_cast<std::uint32_t>(i)));
    }
    return made;
  }();
  Bytes made(bytes);
  std::size_t at = (1000 * from + 77 * to) % kPeriod;
  for (std::size_t i = 0; i < bytes; at = 0) {
    const std::size_t run = std::min(bytes - i, kPeriod - at);
    std::memcpy(made.data() + i, kNumbers.data() + at, run);
    i += run;
  }
  return made;
}

void append(Bytes& whole, const Bytes& part) {
  whole.insert(whole.end(), part.begin(), part.end());
}

/// `got` ends with the byte after the operand, which nothing may have written.
void expect_bytes(const Bytes& got, Bytes expected, const std::string& what) {
  expected.push_back(ContractRank::kUnwritten);
  if (got != expected) {
    const auto wrong = std::ranges::mismatch(got, expected).in1;
    ADD_FAILURE() << what << ": byte " << wrong - got.begin() << " of " << expected.size() - 1;
  }
}

enum class Shard { kApart, kInBlock };

Task<> gather(ContractRank* rank, Homes homes, std::size_t bytes, Shard where, bool is_replicated) {
  rank->free_operands();
  const std::size_t parts = is_replicated ? 1 : rank->world();
  const Operand block = rank->operand(homes.into, parts * bytes);
  const Operand shard = where == Shard::kInBlock
                            ? block + (is_replicated ? 0 : rank->number() * bytes)
                            : rank->operand(homes.from, bytes);
  co_await rank->put(shard, content(rank->number(), 0, bytes));
  co_await rank->backend().all_gather(gather_of(shard, block, bytes, is_replicated));
  Bytes expected;
  for (std::uint32_t from = 0; from < parts; ++from) {
    append(expected, content(is_replicated ? rank->number() : from, 0, bytes));
  }
  expect_bytes(co_await rank->get(block, parts * bytes), std::move(expected),
               fmt::format("rank {}, from {} into {}", rank->number(), name_of(homes.from),
                           name_of(homes.into)));
}

Task<> gather_all(ContractRank* rank, const Backend* backend, const std::vector<std::size_t>* sizes,
                  Shard where, bool is_replicated) {
  for (const Homes homes : backend->gathers) {
    for (const std::size_t bytes : *sizes) {
      if (where == Shard::kApart || homes.from == homes.into) {
        co_await gather(rank, homes, bytes, where, is_replicated);
      }
    }
  }
}

TEST_P(CollectiveMoves, ShardsAreGatheredInRankOrder) {
  const auto all = sizes();
  expect_well(
      [&](ContractRank* rank) { return gather_all(rank, &backend(), &all, Shard::kApart, false); });
}

TEST_P(CollectiveMoves, AShardMayLieInItsBlock) {
  const auto all = sizes();
  expect_well([&](ContractRank* rank) {
    return gather_all(rank, &backend(), &all, Shard::kInBlock, false);
  });
}

// The ranks' bytes differ, although a caller's do not: each rank copies its own.
TEST_P(CollectiveMoves, AReplicatedShardIsCopiedLocally) {
  const auto all = sizes();
  for (const Shard where : {Shard::kApart, Shard::kInBlock}) {
    expect_well(
        [&](ContractRank* rank) { return gather_all(rank, &backend(), &all, where, true); });
  }
}

Task<> swap_all(ContractRank* rank, const Backend* backend, const std::vector<std::size_t>* sizes) {
  for (const Homes homes : backend->swaps) {
    for (const std::size_t bytes : *sizes) {
      rank->free_operands();
      const std::size_t all = rank->world() * bytes;
      const Operand from = rank->operand(homes.from, all);
      const Operand into = rank->operand(homes.into, all);
      Bytes given, expected;
      for (std::uint32_t peer = 0; peer < rank->world(); ++peer) {
        append(given, content(rank->number(), peer, bytes));
        append(expected, content(peer, rank->number(), bytes));
      }
      co_await rank->put(from, std::move(given));
      co_await rank->backend().all_to_all(swap_of(from, into, bytes));
      expect_bytes(co_await rank->get(into, all), std::move(expected),
                   fmt::format("rank {}, from {}", rank->number(), name_of(homes.from)));
    }
  }
}

TEST_P(CollectiveMoves, PieceNumberPGoesToRankP) {
  const auto all = sizes();
  expect_well([&](ContractRank* rank) { return swap_all(rank, &backend(), &all); });
}

Task<> exchange_all(ContractRank* rank, const Backend* backend) {
  for (const Homes homes : backend->exchanges) {
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{1001}, kExchangeBytes}) {
      rank->free_operands();
      const Operand mine = rank->operand(homes.from, bytes);
      const Operand all = rank->operand(homes.into, rank->world() * bytes);
      co_await rank->put(mine, content(rank->number(), 0, bytes));
      co_await rank->backend().exchange(exchange_of(mine, all, bytes));
      Bytes expected;
      for (std::uint32_t from = 0; from < rank->world(); ++from) {
        append(expected, content(from, 0, bytes));
      }
      expect_bytes(co_await rank->get(all, rank->world() * bytes), std::move(expected),
                   fmt::format("rank {}, {} bytes", rank->number(), bytes));
    }
  }
}

TEST_P(CollectiveMoves, AnExchangeHasEveryRanksBytes) {
  expect_well([&](ContractRank* rank) { return exchange_all(rank, &backend()); });
}

/// The ranks come one after another.
Task<> meet(ContractRank* rank, std::atomic<std::uint32_t>* came) {
  for (std::uint32_t round = 1; round <= 5; ++round) {
    co_await sleep_for((rank->number() + round) % rank->world() * 1ms);
    ++*came;
    co_await rank->backend().exchange(exchange_of(nullptr, nullptr, 0));
    EXPECT_GE(*came, round * rank->world());
  }
}

TEST_P(CollectiveMoves, AnExchangeOfNothingWaitsForAllRanks) {
  for (std::uint64_t seed = 0; seed < backend().seeds; ++seed) {
    std::atomic<std::uint32_t> came = 0;
    const WorldRun run =
        backend().run(ranks(), seed, [&](ContractRank* rank) { return meet(rank, &came); });
    EXPECT_EQ(came, 5 * ranks());
    EXPECT_EQ(run.left_behind, "");
  }
}

// ---- both sequences at once, many operations of each ----

constexpr std::uint32_t kRounds = 48;

Task<> pause(const ContractRank* rank, std::uint32_t seed) {
  co_await sleep_for(std::chrono::microseconds(mixed(seed + 7919 * rank->number()) % 200));
}

/// Operands are used again at once when an operation has ended.
Task<> move_often(ContractRank* rank, const Backend* backend) {
  const std::size_t most = backend->large_bytes;
  const Operand from = rank->operand(backend->swaps[0].from, most * rank->world());
  const Operand into = rank->operand(backend->swaps[0].into, most * rank->world());
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    co_await pause(rank, round);
    const std::size_t bytes = round % 8 == 0 ? most : round % 2 == 0 ? most / 3 : 700;
    const bool swaps = round % 3 == 0;
    std::memset(from.memory(), static_cast<int>(round + rank->number()),
                bytes * (swaps ? rank->world() : 1));
    Task<> moved = swaps ? rank->backend().all_to_all(swap_of(from, into, bytes))
                         : rank->backend().all_gather(gather_of(from, into, bytes));
    co_await std::move(moved);
    for (std::size_t i = 0; i < rank->world() * bytes; i += 997) {
      if (into.memory()[i] != static_cast<std::byte>(round + i / bytes)) {
        ADD_FAILURE() << "rank " << rank->number() << ", round " << round << ", byte " << i;
        break;
      }
    }
  }
}

Task<> add_often(ContractRank* rank, const Backend* backend) {
  const std::uint32_t world = rank->world();
  const Operand block =
      rank->operand(backend->reductions[0].from, backend->large_tiles * kNormTile * 4 * world);
  const Operand sum =
      rank->operand(backend->reductions[0].into, backend->large_tiles * kNormTile * 4 * world);
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    co_await pause(rank, kRounds + round);
    const bool is_all = round % 3 == 0;
    const std::size_t tiles = round % 8 == 0 ? backend->large_tiles : 1 + round % 2;
    const Reduction what{.elements = tiles * kNormTile, .want_norm = round % 2 == 0};
    auto* const values = reinterpret_cast<float*>(block.memory());
    std::fill_n(values, what.elements * (is_all ? 1 : world),
                static_cast<float>(round + rank->number()));
    const ReduceArguments a = reduction_of(block, sum, what);
    Task<GradientNorm> added =
        is_all ? rank->backend().all_reduce_add(a) : rank->backend().reduce_scatter_add(a);
    (void)co_await std::move(added);
    const auto* const sums = reinterpret_cast<const float*>(sum.memory());
    const auto expected = static_cast<float>(round * world + world * (world - 1) / 2);
    EXPECT_EQ(std::count(sums, sums + what.elements, expected),
              static_cast<std::ptrdiff_t>(what.elements))
        << "rank " << rank->number() << ", round " << round;
    std::uint64_t mine = round * 100 + rank->number();
    std::vector<std::uint64_t> all(world);
    co_await rank->backend().exchange(exchange_of(reinterpret_cast<const std::byte*>(&mine),
                                                  reinterpret_cast<std::byte*>(all.data()), 8));
    for (std::uint32_t from = 0; from < world; ++from) {
      EXPECT_EQ(all[from], round * 100 + from);
    }
  }
}

Task<> use_both(ContractRank* rank, const Backend* backend) {
  co_await with_scope(
      [](Scope& scope, ContractRank* of, const Backend* on) -> Task<> {
        scope.spawn("moves", &move_often, of, on);
        scope.spawn("sums", &add_often, of, on);
        co_return;
      },
      rank, backend);
}

TEST_P(CollectiveMoves, BothSequencesRunAtOnce) {
  expect_well([&](ContractRank* rank) { return use_both(rank, &backend()); });
}

}  // namespace
}  // namespace tandem::test
