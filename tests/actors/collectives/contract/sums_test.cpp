// Reductions of every back end: the bits of plain loops that add in the back end's order, at any
// size, in every type, wherever the operands lie; and their norms.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tests/actors/collectives/contract/contract_case.hpp"
#include "tests/support/reduction_reference.hpp"

namespace tandem::test {
namespace {

class CollectiveSums : public ContractTest {};
INSTANTIATE_TEST_SUITE_P(Collectives, CollectiveSums, ::testing::ValuesIn(contract_cases()),
                         name_of_case);

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

/// Ranks' blocks in two rounds, and their sums by plain loops: after round 1 both rounds' sum. A
/// shorter block is the beginning of a longer one, and so is its sum.
struct Blocks {
  Blocks(std::uint32_t world, DType type, std::size_t elements, SumOrder order) : type(type) {
    const std::uint32_t in_part = order == SumOrder::kRankByRank   ? 1
                                  : order == SumOrder::kPairByPair ? 2
                                                                   : world;
    std::vector<float> sum(elements), part(elements), one(elements);
    for (std::uint32_t round = 0; round < 2; ++round) {
      of[round].resize(world, std::vector<std::byte>(elements * bytes_of(type)));
      for (std::uint32_t i = 0; i < world; ++i) {
        const std::uint32_t rank = order == SumOrder::kNcclsOfTheFake ? world - 1 - i : i;
        std::vector<std::byte>& block = of[round][rank];
        fill_block(block.data(), type, elements, rank, round);
        cast(block.data(), type, one.data(), DType::kF32, 0, elements);
        add(one, part, i % in_part == 0);
        if (order == SumOrder::kNcclsOfTheFake && i + 1 == world) {
          std::vector<std::byte> rounded(block.size());
          cast(part.data(), DType::kF32, rounded.data(), type, 0, elements);
          cast(rounded.data(), type, part.data(), DType::kF32, 0, elements);
        }
        if (i % in_part + 1 == in_part) {
          add(part, sum, round == 0 && i < in_part);
        }
      }
      sums[round] = sum;
    }
  }
  static void add(const std::vector<float>& from, std::vector<float>& into, bool begins) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      into[i] = begins ? from[i] : into[i] + from[i];
    }
  }
  DType type;
  std::array<std::vector<std::vector<std::byte>>, 2> of;  // [round][rank]
  std::array<std::vector<float>, 2> sums;                 // [round]
};

void expect_sum(const ContractRank& rank, const std::vector<std::byte>& got, const float* expected,
                std::size_t elements, const GradientNorm& norm, bool has_norm) {
  const std::size_t bytes = elements * sizeof(float);
  if (std::memcmp(got.data(), expected, bytes) != 0) {
    std::size_t wrong = 0;
    while (std::memcmp(got.data() + wrong * 4, expected + wrong, 4) == 0) {
      ++wrong;
    }
    ADD_FAILURE() << "rank " << rank.number() << ": element " << wrong << " of " << elements;
  }
  EXPECT_EQ(got[bytes], ContractRank::kUnwritten) << "written beyond its end";
  GradientNorm wanted;
  if (has_norm) {
    add_norm(expected, DType::kF32, 0, elements, wanted);
  }
  EXPECT_EQ(norm.sum_of_squares, wanted.sum_of_squares);
  EXPECT_EQ(norm.first_bad_element, -1);
}

struct SumShapes {
  const Backend* backend;
  std::vector<std::size_t> tiles;
  bool is_all;
  std::uint32_t tree = 1;
};

Task<> reduce(ContractRank* rank, const Blocks* blocks, Homes homes, std::size_t elements,
              const SumShapes* shapes) {
  const bool is_all = shapes->is_all;
  rank->free_operands();
  const std::size_t first = is_all ? 0 : rank->number() * elements;
  const std::size_t whole = is_all ? elements : rank->world() * elements;
  const std::size_t block_bytes = whole * bytes_of(blocks->type);
  const Operand block = rank->operand(homes.from, block_bytes);
  const Operand sum = rank->operand(homes.into, elements * sizeof(float));
  for (std::uint32_t round = 0; round < 2; ++round) {
    const std::vector<std::byte>& given = blocks->of[round][rank->number()];
    const auto end = given.begin() + static_cast<std::ptrdiff_t>(block_bytes);
    co_await rank->put(block, std::vector<std::byte>(given.begin(), end));
    const Reduction what{.type = blocks->type,
                         .elements = elements,
                         .mode = round == 0 ? AccumulateMode::kOverwrite : AccumulateMode::kAdd,
                         .want_norm = round == 1,
                         .tree = shapes->tree};
    const ReduceArguments a = reduction_of(block, sum, what);
    Task<GradientNorm> added =
        is_all ? rank->backend().all_reduce_add(a) : rank->backend().reduce_scatter_add(a);
    const GradientNorm norm = co_await std::move(added);
    expect_sum(*rank, co_await rank->get(sum, elements * sizeof(float)),
               blocks->sums[round].data() + first, elements, norm, what.want_norm);
  }
}

Task<> reduce_all(ContractRank* rank, const Blocks* blocks, const SumShapes* shapes) {
  for (const Homes homes : shapes->backend->reductions) {
    for (const std::size_t tiles : shapes->tiles) {
      co_await reduce(rank, blocks, homes, tiles * kNormTile, shapes);
    }
  }
}

TEST_P(CollectiveSums, OfAScatterHaveTheBitsOfTheirOrder) {
  const std::size_t large = backend().large_tiles;
  const SumShapes shapes{&backend(), {0, 1, 3, large}, false};
  for (const DType type : kTypes) {
    SCOPED_TRACE(name_of(type));
    const Blocks blocks(ranks(), type, large * ranks() * kNormTile, backend().scattered_sums);
    expect_well([&](ContractRank* rank) { return reduce_all(rank, &blocks, &shapes); });
  }
}

// The lengths divide evenly among some numbers of ranks and not among others.
TEST_P(CollectiveSums, OfAllHaveTheBitsOfTheirOrder) {
  const std::size_t large = backend().large_tiles;
  const SumShapes shapes{&backend(), {0, 1, 2, 7, large, 2 * large + 1}, true};
  for (const DType type : kTypes) {
    SCOPED_TRACE(name_of(type));
    const Blocks blocks(ranks(), type, (2 * large + 1) * kNormTile, backend().all_sums);
    expect_well([&](ContractRank* rank) { return reduce_all(rank, &blocks, &shapes); });
  }
}

// With an odd number of ranks the request has no effect.
TEST_P(CollectiveSums, NeighboursAreAddedFirstOnRequest) {
  TANDEM_NEEDS_PROMISE(Promise::kAddsTrees);
  const std::size_t large = backend().large_tiles;
  const SumOrder order = ranks() % 2 == 0 ? SumOrder::kPairByPair : SumOrder::kRankByRank;
  const Blocks blocks(ranks(), DType::kBF16, large * ranks() * kNormTile, order);
  for (const bool is_all : {false, true}) {
    const SumShapes shapes{&backend(), {1, large}, is_all, 2};
    expect_well([&](ContractRank* rank) { return reduce_all(rank, &blocks, &shapes); });
  }
}

/// An infinity and behind it a NaN in the last rank's values for rank 0.
Task<> reduce_bad(ContractRank* rank, const Backend* backend, bool is_all) {
  constexpr std::size_t kBad = kNormTile + 7;
  const std::size_t elements = backend->large_tiles * kNormTile;
  for (const Homes homes : backend->reductions) {
    rank->free_operands();
    std::vector<float> values(elements * (is_all ? 1 : rank->world()));
    if (rank->number() + 1 == rank->world()) {
      values[elements - 5] = std::numeric_limits<float>::quiet_NaN();
      values[kBad] = std::numeric_limits<float>::infinity();
    }
    const Operand block = rank->operand(homes.from, values.size() * sizeof(float));
    const Operand sum = rank->operand(homes.into, elements * sizeof(float));
    const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
    co_await rank->put(block, std::vector<std::byte>(bytes, bytes + values.size() * sizeof(float)));
    const ReduceArguments a = reduction_of(block, sum, {.elements = elements});
    Task<GradientNorm> added =
        is_all ? rank->backend().all_reduce_add(a) : rank->backend().reduce_scatter_add(a);
    const GradientNorm norm = co_await std::move(added);
    const bool has_it = is_all || rank->number() == 0;
    EXPECT_EQ(norm.first_bad_element, has_it ? static_cast<std::int64_t>(kBad) : -1);
    EXPECT_EQ(norm.sum_of_squares.is_finite(), !has_it);
  }
}

TEST_P(CollectiveSums, NameTheFirstBadElement) {
  for (const bool is_all : {false, true}) {
    SCOPED_TRACE(is_all ? "all-reduce" : "reduce-scatter");
    expect_well([&](ContractRank* rank) { return reduce_bad(rank, &backend(), is_all); });
  }
}

/// The second time the values are in their place.
Task<> keep_values(ContractRank* rank, const Backend* backend, DType type) {
  const std::size_t elements = backend->large_tiles * kNormTile;
  const std::size_t bytes = elements * bytes_of(type);
  for (const Homes homes : backend->reductions) {
    rank->free_operands();
    const Operand block = rank->operand(homes.from, bytes);
    const Operand kept = rank->operand(homes.into, bytes);
    std::vector<std::byte> values(bytes);
    fill_block(values.data(), type, elements, 0, 0);
    GradientNorm expected;
    add_norm(values.data(), type, 0, elements, expected);
    co_await rank->put(block, values);
    for (const Operand from : {block, kept}) {
      if (from == kept && homes.from != homes.into) {
        break;
      }
      const GradientNorm norm = co_await rank->backend().reduce_scatter_add(
          reduction_of(from, kept, {.type = type, .elements = elements, .accumulator_type = type}));
      std::vector<std::byte> got = co_await rank->get(kept, bytes);
      EXPECT_EQ(got.back(), ContractRank::kUnwritten);
      got.pop_back();
      EXPECT_TRUE(got == values);
      EXPECT_EQ(norm.sum_of_squares, expected.sum_of_squares);
    }
  }
}

TEST_P(CollectiveSums, OfOneRankMayKeepTheirTypeAndPlace) {
  TANDEM_NEEDS_PROMISE(Promise::kKeepsTypes);
  for (const DType type : kTypes) {
    SCOPED_TRACE(name_of(type));
    expect_well([&](ContractRank* rank) { return keep_values(rank, &backend(), type); });
  }
}

}  // namespace
}  // namespace tandem::test
