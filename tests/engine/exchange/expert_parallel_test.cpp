// Experts spread over ranks: where parts lie, who exchanges with whom, what a lane gets when a peer
// is lost. That no bit changes is said by the mixtures' tests
// (tests/models/cifar/moe_net_test.cpp).
#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/config/config.hpp"
#include "engine/exchange/expert_parallel_group.hpp"
#include "engine/layout/sharding.hpp"
#include "engine/tensors/unit.hpp"
#include "runtime/compute_lane.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

/// `experts` runs of a matrix of 600 elements and a vector of 5.
UnitSpec experts_unit(std::int64_t experts, std::int64_t parts) {
  UnitSpec unit{.name = "experts", .parameters = {}, .experts = experts, .ep_size = parts};
  for (std::int64_t e = 0; e < experts; ++e) {
    unit.parameters.push_back({"e" + std::to_string(e) + ".weight", {20, 30}});
    unit.parameters.push_back({"e" + std::to_string(e) + ".bias", {5}});
  }
  return unit;
}

Model model_of(std::vector<UnitSpec> units) {
  Model model;
  model.units = std::move(units);
  return model;
}

Sharding sharding_of(const Model& model, int stage, std::uint32_t world, std::uint32_t rank) {
  ZeroConfig zero;
  zero.stage = stage;
  return Sharding::of(model, zero, world, rank);
}

// ---- where parts lie

TEST(Parts, AreRunsOfWholeExpertsAtEveryStage) {
  for (const int stage : {0, 3}) {
    for (const std::int64_t parts : {2, 4}) {
      const Model model = model_of({experts_unit(4, parts)});
      const Sharding sharding = sharding_of(model, stage, 4, 3);
      const ParameterLayout layout = ParameterLayout::of(model.units[0], sharding);
      EXPECT_TRUE(sharding.is_sharded(model.units[0]));
      EXPECT_FALSE(sharding.weights_replicated[0])
          << "persistent parameters are small and alike on all ranks";
      EXPECT_EQ(layout.block.world, 4U);
      EXPECT_EQ(layout.gathered.world, 4U / parts) << "the ranks that hold a part";
      EXPECT_EQ(layout.gathered.padded_elements * static_cast<std::size_t>(parts),
                layout.block.padded_elements);
      const auto part = static_cast<std::int64_t>(layout.gathered.padded_elements);
      for (std::size_t e = 0; e < 4; ++e) {
        const auto expert = static_cast<std::int64_t>(e);
        EXPECT_EQ(layout.offsets[2 * e] / part, expert / (4 / parts)) << "its part";
        EXPECT_EQ(layout.offsets[2 * e] % part, expert % (4 / parts) * 1024) << "its place there";
        EXPECT_EQ(layout.offsets[2 * e + 1], layout.offsets[2 * e] + 600);
      }
    }
  }
}

TEST(Parts, ElementsHaveOnePositionHoweverTheyAreSpread) {
  const auto positions = [](std::int64_t parts, std::uint32_t world) {
    const Model model = model_of({experts_unit(8, parts)});
    const ParameterLayout layout =
        ParameterLayout::of(model.units[0], sharding_of(model, 1, world, 0));
    std::vector<std::int64_t> all;
    for (const std::int64_t offset : layout.offsets) {
      all.push_back(layout.position_of(offset));
    }
    all.push_back(layout.position_of(static_cast<std::int64_t>(layout.block.padded_elements)));
    return all;
  };
  const std::vector<std::int64_t> alone = positions(1, 1);
  EXPECT_EQ(alone.back(), 8 * 1024);
  for (const auto& [parts, world] :
       {std::pair{1, 8}, std::pair{2, 2}, std::pair{2, 12}, std::pair{8, 8}}) {
    EXPECT_EQ(positions(parts, static_cast<std::uint32_t>(world)), alone)
        << parts << " parts, " << world << " ranks";
  }
}

TEST(Parts, ThatCannotBeAreRefused) {
  const auto refusal = [](std::vector<UnitSpec> units, std::int64_t world) {
    return error_text([&] { (void)require_ep_size(model_of(std::move(units)), world); });
  };
  EXPECT_EQ(refusal({experts_unit(4, 2), experts_unit(2, 1), experts_unit(8, 2)}, 6), "no error");
  EXPECT_NE(refusal({experts_unit(4, 2), experts_unit(4, 4)}, 4).find("use one number"),
            std::string::npos);
  EXPECT_NE(refusal({experts_unit(3, 2)}, 2).find("3 experts"), std::string::npos);
  EXPECT_NE(refusal({experts_unit(4, 4)}, 6).find("over 4 ranks, and 6"), std::string::npos);
}

// ---- who exchanges with whom

/// A rank's loop, lane and groups, without an engine.
struct World {
  EventLoop loop;
  ComputeLane lane{loop, "compute"};
  CpuPool pool{loop, {.threads = 1}};
  std::unique_ptr<CollectiveBackend> all;
  std::optional<ExpertParallelGroup> ranks;

  World(Communicator& communicator, std::int64_t parts)
      : all(communicator.make_backend(loop, pool)) {
    ranks.emplace(communicator, loop, pool, parts, std::vector<std::string>());
  }

  /// `work` on the lane, beside started groups.
  void run(std::function<void()> work) {
    loop.run(
        [](World* self, std::function<void()> on_lane) -> Task<> {
          Scope scope(self->loop, "actors");
          self->ranks->collectives().start(scope);
          std::exception_ptr error;
          try {
            co_await self->lane.run(std::move(on_lane));
          } catch (...) {
            error = std::current_exception();
          }
          self->ranks->collectives().close();
          scope.request_stop();
          co_await scope.empty();
          if (error != nullptr) {
            std::rethrow_exception(error);
          }
        },
        this, std::move(work));
  }
};

TEST(ExpertParallelGroup, PiecesGoToTheRanksOfTheOtherParts) {
  for (const auto& [world, parts] : {std::pair{2, 2}, std::pair{4, 2}, std::pair{4, 4}}) {
    const auto received = on_ranks(world, [&](std::shared_ptr<Communicator> communicator) {
      World here(*communicator, parts);
      EXPECT_EQ(here.ranks->exchange().ranks(), parts);
      std::vector<int> from(static_cast<std::size_t>(parts));
      std::iota(from.begin(), from.end(), 100 * communicator->rank());
      std::vector<int> into(from.size());
      here.run([&] {
        here.ranks->exchange().all_to_all(reinterpret_cast<const std::byte*>(from.data()),
                                          reinterpret_cast<std::byte*>(into.data()), sizeof(int));
      });
      return into;
    });
    const int of_part = world / parts;
    for (int rank = 0; rank < world; ++rank) {
      for (int peer = 0; peer < parts; ++peer) {
        // The peer's piece for this rank's part.
        EXPECT_EQ(received[static_cast<std::size_t>(rank)][static_cast<std::size_t>(peer)],
                  100 * (peer * of_part + rank % of_part) + rank / of_part)
            << world << " ranks, " << parts << " parts";
      }
    }
  }
}

TEST(ExpertParallelGroup, ALostPeerEndsTheLanesWait) {
  const auto errors = on_ranks(2, [&](std::shared_ptr<Communicator> communicator) -> std::string {
    World here(*communicator, 2);
    if (communicator->rank() == 1) {
      here.ranks->give_up(std::runtime_error("it had enough"));
      return "";
    }
    std::array<std::byte, 8> from{};
    std::array<std::byte, 8> into{};
    return error_text(
        [&] { here.run([&] { here.ranks->exchange().all_to_all(from.data(), into.data(), 4); }); },
        ExitCode::kPeer);
  });
  EXPECT_NE(errors[0].find("it had enough"), std::string::npos) << errors[0];
}

// Too large for what travels with the headers: through the stage, in pieces, copied by the
// exchange's own thread.
TEST(ExpertParallelGroup, LargePiecesComeWhole) {
  const auto received = on_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    World here(*communicator, 2);
    constexpr std::size_t kPiece = 700'001;
    std::vector<int> from(2 * kPiece);
    std::iota(from.begin(), from.end(), 10'000'000 * communicator->rank());
    std::vector<int> into(from.size());
    here.run([&] {
      for (int round = 0; round < 3; ++round) {
        std::ranges::fill(into, -1);
        here.ranks->exchange().all_to_all(reinterpret_cast<const std::byte*>(from.data()),
                                          reinterpret_cast<std::byte*>(into.data()),
                                          kPiece * sizeof(int));
      }
    });
    std::size_t right = 0;
    const auto is_right = [&] {
      const auto peer = static_cast<int>(right / kPiece);
      const auto place = static_cast<int>(right % kPiece);
      return into[right] ==
             10'000'000 * peer + communicator->rank() * static_cast<int>(kPiece) + place;
    };
    while (right < into.size() && is_right()) {
      ++right;
    }
    return right;
  });
  EXPECT_EQ(received, (std::vector<std::size_t>{1'400'002, 1'400'002})) << "how many are right";
}

}  // namespace
}  // namespace tandem
