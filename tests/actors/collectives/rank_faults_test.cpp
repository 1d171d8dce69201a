// Errors of ranks when one of them dies, stands still, aborts, leaves or begins another operation:
// in all operations every survivor ends, and names the rank at fault and its own operation. The
// same holds over shared memory and by NCCL.
#include <array>
#include <csignal>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/sleep.hpp"
#include "tests/support/nccl_world.hpp"
#include "tests/support/shm_world.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::kOperations;
using test::NcclRank;
using test::NcclWorld;
using test::Operands;
using test::RankProcess;
using test::ShmRank;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// kShm: three processes over shared memory. kNccl: three ranks with GPUs, on the fakes of NCCL and
/// CUDA, in virtual time.
enum Way : unsigned char { kShm, kNccl };
enum Fault : unsigned char { kDies, kStandsStill, kAborts, kLeaves };
constexpr const char* kWays[] = {"shm", "nccl"};
constexpr const char* kFaults[] = {"dies", "stands_still", "aborts", "leaves"};

/// The operations of three ranks: each does `good` operations of its kind; then the struck rank, if
/// it is one of them, has the fault, and the others, like a rank that has aborted, begin one more.
struct Story {
  std::array<std::size_t, 3> kinds;
  int good = 0;
  std::uint32_t struck = 3;
  Fault fault = kDies;
};
/// The error that a rank threw, and its exit code.
struct Ending {
  std::string text;
  int code = 0;
};
using Endings = std::array<Ending, 3>;

Endings over_shm(const Story& story) {
  ShmBackend::Options options{.world = 3, .job = test::random_job()};
  if (story.fault == kStandsStill) {
    options.timeout = 300ms;
  }
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (options.rank = 0; options.rank < 3; ++options.rank) {
    ranks.push_back(std::make_unique<RankProcess>(options, [&](ShmRank& rank, int) {
      const Operands operands = operands_of(rank);
      run(rank, operands, story.kinds[options.rank], story.good);
      if (options.rank == story.struck) {
        if (story.fault == kLeaves) {
          return;
        }
        story.fault == kAborts ? rank.backend->abort("no more data")
                               : void(::raise(story.fault == kDies ? SIGKILL : SIGSTOP));
      }
      run(rank, operands, story.kinds[options.rank], 1);
    }));
  }
  Endings endings;
  for (std::uint32_t i = 1; i <= 3; ++i) {
    const std::uint32_t rank = (story.struck + i) % 3;  // the struck one is the last
    if (rank == story.struck && story.fault == kStandsStill) {
      ranks[rank]->signal(SIGKILL);
    }
    endings[rank].text = ranks[rank]->text();
    const int status = ranks[rank]->wait();
    endings[rank].code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  return endings;
}

Task<> strike(NcclWorld* world, NcclRank* rank, Story story) {
  if (story.fault == kAborts) {
    rank->backend->abort("no more data");
    co_await operate_times(rank, story.kinds[story.struck], 1);
  } else if (story.fault != kStandsStill) {
    co_await sleep_for(100ms);
    const char* why = story.fault == kDies ? "is gone: its process ended" : "has left";
    world->peers.lose(story.struck, fmt::format("rank {} {}", story.struck, why));
  }
}

Endings by_nccl(const Story& story) {
  NcclWorld w(3);
  w.connect();
  const auto number = [&](NcclRank& rank) {
    return static_cast<std::uint32_t>(&rank - w.ranks.data());
  };
  w.run(
      [&](NcclRank& rank) { return operate_times(&rank, story.kinds[number(rank)], story.good); });
  EXPECT_EQ(w.errors(), std::vector<std::string>(3));
  const TimePoint since = w.clock.now();
  w.run([&](NcclRank& rank) {
    return number(rank) == story.struck ? strike(&w, &rank, story)
                                        : operate_times(&rank, story.kinds[number(rank)], 1);
  });
  Endings endings;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    endings[rank] = {w.ranks[rank].error, w.ranks[rank].code};
    if (story.struck < 3 && endings[rank].code != 0) {
      const Duration limits[] = {100ms, 2s, 0s, 100ms};  // until the fault is known
      EXPECT_EQ(w.ranks[rank].failed_rank, story.struck);
      EXPECT_LE(w.ranks[rank].ended - since, limits[story.fault] + 20ms);
    }
  }
  EXPECT_EQ(w.nccl.aborted(), story.struck == 3 || story.fault == kAborts ? 6 : 4);
  return endings;
}

Endings play(Way way, const Story& story) { return way == kShm ? over_shm(story) : by_nccl(story); }

using FaultCase = std::tuple<Way, Fault, std::uint32_t>;
std::string name_of_case(const ::testing::TestParamInfo<FaultCase>& info) {
  const auto [way, fault, struck] = info.param;
  return fmt::format("{}_rank{}_{}", kWays[way], struck, kFaults[fault]);
}
class RankFaults : public ::testing::TestWithParam<FaultCase> {};
INSTANTIATE_TEST_SUITE_P(All, RankFaults,
                         ::testing::Combine(::testing::Values(kShm, kNccl),
                                            ::testing::Values(kDies, kStandsStill, kAborts,
                                                              kLeaves),
                                            ::testing::Values(0U, 1U, 2U)),
                         name_of_case);

TEST_P(RankFaults, SurvivorsNameTheFailedRankAndTheirOperation) {
  const auto [way, fault, struck] = GetParam();
  const char* says[] = {"is gone: its process ended; ", "did not arrive at ",
                        "aborted: no more data; ", "has left; "};
  for (std::size_t kind = 0; kind < kOperations.size(); ++kind) {
    SCOPED_TRACE(kOperations[kind]);
    const Endings endings = play(way, {{kind, kind, kind}, 2, struck, fault});
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      if (rank != struck || fault == kAborts) {
        const std::string third = fmt::format("{} 2", kOperations[kind]);
        EXPECT_THAT(endings[rank].text, StartsWith(fmt::format("[collectives] rank {} {}{}", struck,
                                                               says[fault], third)));
        EXPECT_THAT(endings[rank].text,
                    HasSubstr(fmt::format("{} cannot end on rank {}", third, rank)));
        EXPECT_EQ(endings[rank].code, static_cast<int>(ExitCode::kPeer));
      }
    }
  }
}

class RanksApart : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(All, RanksApart, ::testing::Values(kShm, kNccl),
                         [](const auto& info) { return kWays[info.param]; });

TEST_P(RanksApart, SayBothOperations) {
  for (const Ending& ending : play(GetParam(), {{0, 0, 2}})) {
    EXPECT_THAT(ending.text, HasSubstr("all-gather 0 of 4096 bytes"));
    EXPECT_THAT(ending.text, HasSubstr("rank 2 is at all-to-all 0 of 4096 bytes"));
    EXPECT_EQ(ending.code, static_cast<int>(ExitCode::kPeer));
  }
}

}  // namespace
}  // namespace tandem
