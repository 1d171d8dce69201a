// How the operations of every back end end when a rank is at fault or is stopped: all ranks' with
// an error that names it, and none hangs; and what a back end's memory is like.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/io/net.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/build.hpp"
#include "tests/actors/collectives/contract/contract_case.hpp"
#include "tests/support/collective_operations.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class CollectiveEnds : public ContractTest {
 protected:
  /// Every rank but `struck` has ended because of it.
  static void expect_named(const std::vector<Ending>& endings, std::uint32_t struck) {
    for (std::uint32_t rank = 0; rank < endings.size(); ++rank) {
      if (rank != struck) {
        EXPECT_EQ(endings[rank].lost, backend().first_name + struck) << endings[rank].text;
        EXPECT_EQ(endings[rank].code, static_cast<int>(ExitCode::kPeer));
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Collectives, CollectiveEnds, ::testing::ValuesIn(contract_cases()),
                         name_of_case);

Operands operands_of(ContractRank* rank, const Backend* backend) {
  const Homes homes = backend->gathers.back();
  return {rank->operand(homes.from, Operands::kBytes), rank->operand(homes.into, Operands::kBytes)};
}

/// How a rank comes to its end.
using Strike = Task<> (*)(ContractRank* rank);

struct Story {
  const Backend* backend;
  std::size_t kind;
  std::uint32_t struck;
  Strike strike;
};

/// Two operations go well; then the struck rank has its fault, while the others begin a third one.
Task<> suffer(ContractRank* rank, const Story* story) {
  const Operands operands = operands_of(rank, story->backend);
  co_await operate(&rank->backend(), operands, story->kind, 2);
  if (rank->number() == story->struck) {
    co_await story->strike(rank);
    co_return;
  }
  bool has_failed = false;
  try {
    co_await operate(&rank->backend(), operands, story->kind, 1);
  } catch (const PeerLost&) {
    has_failed = true;
  }
  EXPECT_TRUE(has_failed) << "rank " << rank->number();
  // A failure is permanent.
  co_await operate(&rank->backend(), operands, story->kind, 1);
}

Task<> abort_and_go_on(ContractRank* rank) {
  co_await sleep_for(1ms);
  rank->backend().abort("no more data");
  EXPECT_THAT(co_await outcome_of(
                  [&] { return rank->backend().exchange(exchange_of(nullptr, nullptr, 0)); }),
              ThrowsError<PeerLost>(ExitCode::kPeer));
}

TEST_P(CollectiveEnds, AnAbortEndsEveryRanksOperationsForEver) {
  TANDEM_NEEDS_PROMISE(Promise::kFailsTogether);
  const bool says_why = why_not(Promise::kSaysWhy).empty();
  for (std::size_t kind = 0; kind < kOperations.size(); ++kind) {
    SCOPED_TRACE(kOperations[kind]);
    const Story story{&backend(), kind, static_cast<std::uint32_t>(kind) % ranks(),
                      &abort_and_go_on};
    run_each([&](ContractRank* rank) { return suffer(rank, &story); },
             [&](const std::vector<Ending>& endings) {
               expect_named(endings, story.struck);
               EXPECT_EQ(endings[story.struck].text, "");
               for (std::uint32_t rank = 0; rank < endings.size(); ++rank) {
                 if (rank != story.struck && says_why) {
                   EXPECT_THAT(endings[rank].text, HasSubstr("aborted: no more data"));
                   EXPECT_THAT(endings[rank].text,
                               HasSubstr(fmt::format("{} 3 cannot end", kOperations[kind])));
                 }
               }
             });
  }
}

/// The rank gives up because of another one, which has done nothing.
template <std::uint32_t kBlamed>
Task<> blame(ContractRank* rank) {
  co_await sleep_for(1ms);
  rank->backend().give_up(PeerLost("[test] a link is down", kBlamed));
}

TEST_P(CollectiveEnds, ARankMayBlameAnotherOne) {
  TANDEM_NEEDS_PROMISE(Promise::kFailsTogether);
  const Story story{&backend(), 0, 0, backend().first_name == 0 ? &blame<1> : &blame<2>};
  run_each([&](ContractRank* rank) { return suffer(rank, &story); },
           [&](const std::vector<Ending>& endings) {
             for (std::uint32_t rank = 1; rank < endings.size(); ++rank) {
               EXPECT_EQ(endings[rank].lost, backend().first_name + 1) << endings[rank].text;
             }
           });
}

Task<> leave(ContractRank* rank) {
  co_await sleep_for(1ms);
  rank->leave();
}

TEST_P(CollectiveEnds, ARankThatLeavesEndsTheOthers) {
  TANDEM_NEEDS_PROMISE(Promise::kNoticesLeaving);
  for (std::size_t kind = 0; kind < kOperations.size(); ++kind) {
    SCOPED_TRACE(kOperations[kind]);
    const Story story{&backend(), kind, static_cast<std::uint32_t>(kind) % ranks(), &leave};
    run_each([&](ContractRank* rank) { return suffer(rank, &story); },
             [&](const std::vector<Ending>& endings) { expect_named(endings, story.struck); });
  }
}

/// The last rank is at another operation than the others, or at one of another size.
Task<> disagree(ContractRank* rank, const Backend* backend, bool in_size) {
  const Operands operands = operands_of(rank, backend);
  const bool is_last = rank->number() + 1 == rank->world();
  if (!in_size && is_last) {
    co_await rank->backend().all_to_all(swap_of(operands.block, operands.into, 1000));
  } else {
    co_await rank->backend().all_gather(
        gather_of(operands.block, operands.into, is_last ? 1128 : 1000));
  }
}

void expect_both(const std::vector<Ending>& endings, const Backend& backend, const char* other) {
  for (const Ending& ending : endings) {
    EXPECT_EQ(ending.code, static_cast<int>(ExitCode::kPeer)) << ending.text;
    if (!backend.not_promised.contains(Promise::kSaysWhy)) {
      EXPECT_THAT(ending.text, HasSubstr("all-gather 0 of 1000 bytes"));
      EXPECT_THAT(ending.text, HasSubstr(other));
    }
  }
}

TEST_P(CollectiveEnds, RanksAtDifferentSizesEndWithAnError) {
  TANDEM_NEEDS_PROMISE(Promise::kFailsTogether);
  run_each([&](ContractRank* rank) { return disagree(rank, &backend(), true); },
           [&](const std::vector<Ending>& endings) {
             expect_both(endings, backend(), "all-gather 0 of 1128 bytes");
           });
}

TEST_P(CollectiveEnds, RanksAtDifferentOperationsEndWithAnError) {
  TANDEM_NEEDS_PROMISE(Promise::kComparesOperations);
  run_each([&](ContractRank* rank) { return disagree(rank, &backend(), false); },
           [&](const std::vector<Ending>& endings) {
             expect_both(endings, backend(), "all-to-all 0 of 1000 bytes");
           });
}

// ---- a stop ----

/// One operation after another, until this is stopped or fails.
Task<> go_on(ContractRank* rank, const Backend* backend, std::size_t kind) {
  const StopToken stop = co_await current_stop_token();
  const Operands operands = operands_of(rank, backend);
  while (!stop.stop_requested()) {
    co_await operate(&rank->backend(), operands, kind, 1);
    co_await sleep_for(10us);
  }
}

Task<> stop_soon(Scope* scope, Duration after) {
  co_await sleep_for(after);
  scope->request_stop();
}

/// Rank 0 is stopped after that time.
Task<> be_stopped(ContractRank* rank, const Backend* backend, std::size_t kind, Duration after) {
  co_await with_scope(
      [](Scope& scope, ContractRank* of, const Backend* on, std::size_t what,
         Duration when) -> Task<> {
        scope.spawn("operations", &go_on, of, on, what);
        if (of->number() == 0) {
          scope.spawn("stop", &stop_soon, &scope, when);
        }
        co_return;
      },
      rank, backend, kind, after);
  rank->backend().abort("it was stopped");
}

TEST_P(CollectiveEnds, AStoppedRankHasNoOperationUnderWayAndEndsTheOthers) {
  constexpr int kMoments = 5;
  for (int moment = 0; moment < kMoments * static_cast<int>(kOperations.size()); ++moment) {
    const std::size_t kind = static_cast<std::size_t>(moment) / kMoments;
    const Duration after = 200us + moment % kMoments * 137us;
    SCOPED_TRACE(fmt::format("{}, moment {}", kOperations[kind], moment % kMoments));
    run_each([&](ContractRank* rank) { return be_stopped(rank, &backend(), kind, after); },
             [&](const std::vector<Ending>& endings) {
               EXPECT_EQ(endings[0].text, "") << "a stop that was asked for is no failure";
               expect_named(endings, 0);
             });
  }
}

// ---- memory ----

Task<> look_at_memory(ContractRank* rank) {
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{3} << 20}) {
    const std::byte* const made = rank->backend().allocate(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(made) % 4096, 0U);
    EXPECT_TRUE(std::all_of(made, made + bytes, [](std::byte b) { return b == std::byte{0}; }));
  }
  if (!kAddressSanitizer && !kThreadSanitizer) {  // they end the program instead
    EXPECT_THAT([&] { (void)rank->backend().allocate(std::size_t{1} << 52); },
                ThrowsError(ExitCode::kRefused));
  }
  co_return;
}

TEST_P(CollectiveEnds, AllocatedMemoryIsZeroedAlignedAndRefusedWhereThereIsNone) {
  expect_well(&look_at_memory);
}

}  // namespace
}  // namespace tandem::test
