// Errors of ranks when one of them dies or stands still: in all operations every survivor ends, and
// names the rank at fault and its own operation. The same holds over shared memory and by NCCL. The
// contract's tests have ranks that abort, leave, or begin another operation.
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
enum Fault : unsigned char { kDies, kStandsStill };
constexpr const char* kWays[] = {"shm", "nccl"};
constexpr const char* kFaults[] = {"dies", "stands_still"};

/// Three ranks do two operations of a kind; then one has the fault, and the others begin one more.
struct Story {
  std::size_t kind;
  std::uint32_t struck;
  Fault fault;
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
      run(rank, operands, story.kind, 2);
      if (options.rank == story.struck) {
        (void)::raise(story.fault == kDies ? SIGKILL : SIGSTOP);
      }
      run(rank, operands, story.kind, 1);
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

Task<> strike(NcclWorld* world, Story story) {
  if (story.fault == kDies) {
    co_await sleep_for(100ms);
    world->peers.lose(story.struck,
                      fmt::format("rank {} is gone: its process ended", story.struck));
  }
}

Endings by_nccl(const Story& story) {
  NcclWorld w(3);
  w.connect();
  w.run([&](NcclRank& rank) { return operate_times(&rank, story.kind, 2); });
  EXPECT_EQ(w.errors(), std::vector<std::string>(3));
  const TimePoint since = w.clock.now();
  w.run([&](NcclRank& rank) {
    return &rank == &w.ranks[story.struck] ? strike(&w, story)
                                           : operate_times(&rank, story.kind, 1);
  });
  Endings endings;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    endings[rank] = {w.ranks[rank].error, w.ranks[rank].code};
    if (endings[rank].code != 0) {
      EXPECT_EQ(w.ranks[rank].failed_rank, story.struck);
      EXPECT_LE(w.ranks[rank].ended - since, (story.fault == kDies ? 100ms : 2s) + 20ms);
    }
  }
  EXPECT_EQ(w.nccl.aborted(), 4);
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
                                            ::testing::Values(kDies, kStandsStill),
                                            ::testing::Values(0U, 1U, 2U)),
                         name_of_case);

TEST_P(RankFaults, SurvivorsNameTheFailedRankAndTheirOperation) {
  const auto [way, fault, struck] = GetParam();
  const char* says[] = {"is gone: its process ended; ", "did not arrive at "};
  for (std::size_t kind = 0; kind < kOperations.size(); ++kind) {
    SCOPED_TRACE(kOperations[kind]);
    const Endings endings = play(way, {kind, struck, fault});
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      if (rank != struck) {
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

}  // namespace
}  // namespace tandem
