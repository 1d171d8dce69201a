// Messages between ranks of several hosts beside NCCL, over real memory and frames: a host is a
// group of threads with shared memory of their own, and UCX joins them on the loopback. The back
// end on it, on fakes of CUDA and NCCL, has the bits of one host.
#include "actors/collectives/nccl/joined_nccl_peers.hpp"

#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/nccl_hosts.hpp"
#include "tests/support/nccl_training.hpp"

namespace tandem {
namespace {

using test::FakeCuda;
using test::FakeNccl;
using test::NcclHostsMeeting;
using test::NcclTrained;
using test::NcclTraining;
using ::testing::HasSubstr;

constexpr std::uint32_t kWorld = 4;
constexpr std::uint32_t kGivesUp = 2;

std::vector<NcclTrained> train_on_hosts(std::uint32_t per_host, bool raises) {
  const FakeCuda cuda(Clock::real());
  FakeNccl nccl;
  nccl.questions = 1;
  nccl.per_host = per_host;
  std::vector<NcclTrained> out(kWorld);
  NcclHostsMeeting meeting(kWorld, per_host);
  std::vector<std::thread> threads;
  threads.reserve(kWorld);
  for (std::uint32_t r = 0; r < kWorld; ++r) {
    threads.emplace_back([&, r] {
      try {
        EventLoop loop({.name = fmt::format("rank {}", r)});
        const NcclTraining training{.world = kWorld,
                                    .gives_up = raises ? std::optional(kGivesUp) : std::nullopt};
        training.run(loop, r, meeting.join(loop, r), out[r]);
      } catch (const PeerLost& lost) {
        EXPECT_EQ(lost.rank(), kGivesUp) << lost.what();
        out[r].error = lost.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (!raises) {
    for (std::uint32_t r = 1; r < kWorld; ++r) {
      EXPECT_EQ(nccl.launches(r), nccl.launches(0));
    }
  }
  EXPECT_EQ(nccl.live(), 0);
  return out;
}

class JoinedNcclPeersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!ucx_support().usable) {
      GTEST_SKIP() << "no UCX: " << ucx_support().what;
    }
  }
};

TEST_F(JoinedNcclPeersTest, CarryTheBackEnd) {
  const test::Expected expected(kWorld, DType::kF32, NcclTraining::kShard * kWorld,
                                NcclTraining::kRounds);
  for (const std::uint32_t per_host : {1U, 2U}) {
    for (const NcclTrained& rank : train_on_hosts(per_host, false)) {
      EXPECT_EQ(rank.error, "");
      EXPECT_EQ(rank.sum, expected.sum);
    }
  }
}

TEST_F(JoinedNcclPeersTest, TellTheBackEndsWhoGaveUp) {
  for (const std::uint32_t per_host : {1U, 2U}) {
    for (const NcclTrained& rank : train_on_hosts(per_host, true)) {
      EXPECT_THAT(rank.error, HasSubstr("rank 2 aborted: no more; "));
    }
  }
}

}  // namespace
}  // namespace tandem
