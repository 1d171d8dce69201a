// What ranks of several hosts tell each other beside NCCL, over real memory and frames: a host is a
// group of threads with shared memory of their own, and UCX joins them on the loopback. The back
// end on it, on fakes of CUDA and NCCL, has the bits of one host.
#include "actors/collectives/nccl/joined_nccl_peers.hpp"

#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/sleep.hpp"
#include "tests/support/nccl_hosts.hpp"
#include "tests/support/nccl_world.hpp"
#include "tests/support/reduction_reference.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using testing::FakeCuda;
using testing::FakeNccl;
using ::testing::HasSubstr;
using testing::NcclHostsMeeting;
using testing::NcclRank;

constexpr std::uint32_t kWorld = 4;
constexpr std::size_t kShard = std::size_t{512} * 9;
constexpr std::uint32_t kRounds = 20;

struct Trained {
  std::vector<float> sum;
  std::string error;
};

Task<> train(EventLoop* loop, NcclRank* rank, NcclBackend::Options options, bool raises,
             Trained* out) {
  rank->backend = co_await NcclBackend::connect(loop, rank->device.get(), options);
  const DeviceBuffer block = rank->buffer(kShard * kWorld * 4);
  const DeviceBuffer sum = rank->buffer(kShard * 4);
  const DeviceBuffer all = rank->buffer(kShard * kWorld * 4);
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    testing::fill_block(block.data(), DType::kF32, kShard * kWorld, options.rank, round);
    (void)co_await rank->backend->reduce_scatter_add(
        {.block = block.data(),
         .accumulator = sum.data(),
         .shard_elements = kShard,
         .mode = round == 0 ? AccumulateMode::kOverwrite : AccumulateMode::kAdd});
    if (raises && round == 7 && options.rank == 2) {
      rank->backend->abort("no more");
    }
    co_await rank->backend->all_gather({sum.data(), all.data(), kShard * 4});
  }
  out->sum.resize(kShard * kWorld);
  std::memcpy(out->sum.data(), all.data(), out->sum.size() * 4);
}

std::vector<Trained> train_on_hosts(std::uint32_t per_host, bool raises) {
  const FakeCuda cuda(Clock::real());
  FakeNccl nccl;
  nccl.questions = 1;
  nccl.per_host = per_host;
  std::vector<Trained> out(kWorld);
  NcclHostsMeeting meeting(kWorld, per_host);
  std::vector<std::thread> threads;
  threads.reserve(kWorld);
  for (std::uint32_t r = 0; r < kWorld; ++r) {
    threads.emplace_back([&, r] {
      try {
        EventLoop loop({.name = fmt::format("rank {}", r)});
        NcclRank rank;
        rank.device = std::make_unique<CudaDevice>(
            loop, FakeCuda::api(), CudaDevice::Options{.name = fmt::format("gpu {}", r)});
        NcclBackend::Options options;
        options.rank = r;
        options.world = kWorld;
        options.api = &FakeNccl::api();
        options.kernels = &testing::fake_kernels();
        const std::shared_ptr<NcclPeers> peers = meeting.join(loop, r);
        options.peers = peers;
        options.workspace_bytes = 16 << 10;
        options.watchdog.look_every = 5ms;
        options.from_rank_0 = [](std::string_view key, const std::string& value) {
          std::string id(key);
          id.resize(value.size());
          return id;
        };
        loop.run(&train, &loop, &rank, options, raises, &out[r]);
      } catch (const PeerLost& lost) {
        EXPECT_EQ(lost.rank(), 2U) << lost.what();
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
  const testing::Expected expected(kWorld, DType::kF32, kShard * kWorld, kRounds);
  for (const std::uint32_t per_host : {1U, 2U}) {
    for (const Trained& rank : train_on_hosts(per_host, false)) {
      EXPECT_EQ(rank.error, "");
      EXPECT_EQ(rank.sum, expected.sum);
    }
  }
}

TEST_F(JoinedNcclPeersTest, TellTheBackEndsWhoGaveUp) {
  for (const std::uint32_t per_host : {1U, 2U}) {
    for (const Trained& rank : train_on_hosts(per_host, true)) {
      EXPECT_THAT(rank.error, HasSubstr("rank 2 aborted: no more; "));
    }
  }
}

}  // namespace
}  // namespace tandem
