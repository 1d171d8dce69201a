#include "engine/distributed/process_group.hpp"

#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "actors/collectives/staged_backend.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/device/cuda_device.hpp"
#include "runtime/device/gpu_probe.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/fakes/fake_cuda.hpp"
#include "tests/support/strangers/rendezvous_job.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

using test::all_of;
using test::Job;
using test::run;

TEST(ProcessGroup, OneProcessNeedsNobody) {
  const auto group = ProcessGroup::join({}, 1s);
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->world_size(), 1);
  group->require_same("config", "anything");
  EventLoop loop;
  CpuPool pool(loop, {});
  EXPECT_EQ(group->make_backend(loop, pool)->world(), 1U);
}

TEST(ProcessGroup, RanksMeetAndReduce) {
  const Job job{.world = 3};
  const auto errors = run(all_of(job), job.timeout, [](ProcessGroup& group) {
    group.require_same("config", "{\"stage\": 3}");
    EventLoop loop;
    CpuPool pool(loop, {});
    const auto backend = group.make_backend(loop, pool);
    std::int64_t mine = group.rank() + 10;
    std::vector<std::int64_t> all(3);
    loop.run([](CollectiveBackend* b, ExchangeArguments a) -> Task<> { co_await b->exchange(a); },
             backend.get(),
             ExchangeArguments{reinterpret_cast<const std::byte*>(&mine),
                               reinterpret_cast<std::byte*>(all.data()), sizeof(mine)});
    EXPECT_EQ(all, (std::vector<std::int64_t>{10, 11, 12}));
    group.require_same("model", "the same");
  });
  EXPECT_EQ(errors, (std::vector<std::string>{"", "", ""}));
}

TEST(ProcessGroup, RanksSplitTheCoresThatTheirMasksShare) {
  cpu_set_t all;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(all), &all), 0);
  const Job job;
  std::vector<int> places(2);
  const auto errors = run(all_of(job), job.timeout, [&](ProcessGroup& group) {
    EXPECT_EQ(group.cores_shared_by(), 2);
    places[static_cast<std::size_t>(group.rank())] = group.place_on_cores();
  });
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
  EXPECT_EQ(places, (std::vector{0, 1}));
  if (CPU_COUNT(&all) < 2) {
    return;
  }
  const Job bound;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      cpu_set_t one;
      CPU_ZERO(&one);
      int seen = 0;
      for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &all) && seen++ == rank) {
          CPU_SET(cpu, &one);
        }
      }
      ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
      const auto group = ProcessGroup::join(bound.of(rank), bound.timeout);
      EXPECT_EQ(group->cores_shared_by(), 1);
      EXPECT_EQ(group->place_on_cores(), 0);
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
}

TEST(ProcessGroup, SaysForWhomItWaits) {
  Job job{.timeout = 7s};
  Environment alone = job.of(0);
  alone.source = "Slurm's variables";
  ::testing::internal::CaptureStderr();
  const auto errors = run({alone}, job.timeout);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("[rendezvous] rank 0 of 2 waits for rank 1 at 127.0.0.1:"));
  EXPECT_THAT(errors[0], HasSubstr("1 of 2 ranks came within 7 s"));
}

/// The addresses (as /proc writes them) on which something listens at `port`.
std::string listeners_at(int port) {
  std::string found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    std::string line;
    while (std::getline(in, line)) {
      char address[64] = {};
      unsigned at = 0;
      unsigned state = 0;
      if (std::sscanf(line.c_str(), " %*d: %63[0-9A-F]:%X %*[0-9A-F]:%*X %X", address, &at,
                      &state) == 3 &&
          at == static_cast<unsigned>(port) && state == 10) {
        found += std::string(address) + " ";
      }
    }
  }
  return found;
}

TEST(ProcessGroup, ListensOnTheLoopbackAloneAndUntilTheRanksHaveMet) {
  const Job job;
  std::string while_they_meet;
  std::thread late([&] {
    while (while_they_meet.empty()) {
      while_they_meet = listeners_at(job.port);
    }
    EXPECT_EQ(run({job.of(1)}, job.timeout, [](ProcessGroup&) {}), std::vector<std::string>{""});
  });
  const auto errors =
      run({job.of(0)}, job.timeout, [&](ProcessGroup&) { EXPECT_EQ(listeners_at(job.port), ""); });
  late.join();
  EXPECT_EQ(errors, std::vector<std::string>{""});
  EXPECT_EQ(while_they_meet, "0100007F ");
}

TEST(ProcessGroup, DifferencesEndEveryRankWithBothValues) {
  const Job job{.world = 3};
  const std::string shared(1000, 'x');
  const auto errors = run(all_of(job), job.timeout, [&](ProcessGroup& group) {
    group.require_same("seed", "42");
    const std::string value = shared + (group.rank() == 2 ? " stage 3 " : " stage 2 ") + shared;
    group.require_same("config", value);
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, ::testing::StartsWith("4 [ranks] the config differs: rank 0 has "));
    EXPECT_THAT(error, HasSubstr("stage 2"));
    EXPECT_THAT(error, HasSubstr("rank 2 has "));
    EXPECT_THAT(error, HasSubstr("stage 3"));
    EXPECT_LT(error.size(), 600U);
  }
  EXPECT_EQ(errors[0], errors[1]);
}

TEST(ProcessGroup, DifferentWorldSizesEndEveryRank) {
  const Job job;
  std::vector<Environment> environments = all_of(job);
  environments[1].world = environments[1].local_world = 3;
  const auto errors = run(environments, job.timeout, [](ProcessGroup&) {});
  EXPECT_THAT(errors[0], HasSubstr("rank 1 has 3, rank 0 has 2"));
  EXPECT_THAT(errors[1], ::testing::StartsWith("4 [rendezvous]"));
}

TEST(ProcessGroup, SaysWhoCame) {
  const Job job{.world = 4, .timeout = 700ms};
  const auto errors = run({job.of(0), job.of(2)}, job.timeout, [](ProcessGroup&) {});
  EXPECT_THAT(errors[0], HasSubstr("2 of 4 ranks came within 0.7 s (0, 2)"));
  EXPECT_THAT(errors[1], ::testing::StartsWith("4 [rendezvous]"));
}

TEST(ProcessGroup, SaysThatRankZeroIsMissing) {
  const Job job{.timeout = 200ms};
  const auto errors = run({job.of(1)}, job.timeout, [](ProcessGroup&) {});
  EXPECT_THAT(errors[0], HasSubstr("4 [rendezvous] rank 0 did not open port"));
}

TEST(ProcessGroup, APortInUseIsTheUsersToChange) {
  const Job job;
  const int taken = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(job.port));
  ASSERT_EQ(::bind(taken, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(taken, 1), 0);
  const auto errors = run({job.of(0)}, job.timeout, [](ProcessGroup&) {});
  EXPECT_THAT(errors[0],
              HasSubstr(fmt::format("2 [rendezvous] port {} of 127.0.0.1 is in use", job.port)));
  ::close(taken);
}

TEST(ProcessGroup, ADoubledRankIsRefused) {
  const Job job{.world = 3, .timeout = 3s};
  const auto errors = run({job.of(0), job.of(1), job.of(1)}, job.timeout, [](ProcessGroup&) {});
  EXPECT_THAT(errors[1] + errors[2], HasSubstr("4 [rendezvous] rank 1 is there twice"));
}

// ---- back ends for GPUs, on fakes ----
/// Rank r reports that it computes on gpus[r], or on the CPU if that is "". Returns each rank's
/// error.
std::vector<std::string> make_backends(const std::vector<std::string>& gpus) {
  const test::FakeCuda cuda(Clock::real());
  const Job job{.world = static_cast<int>(gpus.size())};
  return run(all_of(job), job.timeout, [&](ProcessGroup& group) {
    EventLoop loop;
    CpuPool pool(loop, {});
    const std::string& gpu = gpus[static_cast<std::size_t>(group.rank())];
    if (gpu.empty()) {
      (void)group.make_backend(loop, pool);
      return;
    }
    CudaDevice device(loop, test::FakeCuda::api(), {.name = "gpu 0"});
    (void)group.make_gpu_backend(loop, pool, device, gpu);
  });
}

TEST(ProcessGroup, RanksThatShareAGpuGoThroughHostMemory) {
  const test::FakeCuda cuda(Clock::real());
  const Job job;
  const auto errors = run(all_of(job), job.timeout, [](ProcessGroup& group) {
    EventLoop loop;
    CpuPool pool(loop, {});
    CudaDevice device(loop, test::FakeCuda::api(), {.name = "gpu 0"});
    const auto backend = group.make_gpu_backend(loop, pool, device, "g0");
    auto* const staged = dynamic_cast<StagedBackend*>(backend.get());
    ASSERT_NE(staged, nullptr);
    const DeviceBuffer shard = device.allocate(64);
    const DeviceBuffer block = device.allocate(128);
    std::memset(shard.data(), group.rank() + 1, 64);  // the fake's device memory is the host's
    loop.run([](CollectiveBackend* b, GatherArguments a) -> Task<> { co_await b->all_gather(a); },
             backend.get(),
             GatherArguments{{Place::kDevice, shard.data()}, {Place::kDevice, block.data()}, 64});
    EXPECT_EQ(block.data()[63], std::byte{1});
    EXPECT_EQ(block.data()[64], std::byte{2});
  });
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
}

TEST(ProcessGroup, RanksOnDevicesOfTwoKindsAreToldSo) {
  for (const std::string& error : make_backends({"", "g0"})) {
    EXPECT_EQ(
        error,
        "2 [ranks] rank 1 computes on a GPU, rank 0 on the CPU; give every rank a GPU, or use "
        "device cpu");
  }
}

// Alone it needs neither NCCL nor kernels: copies do.
TEST(ProcessGroup, ARankAloneWithAGpuGoesThroughHostMemory) {
  EXPECT_EQ(make_backends({"g0"}), std::vector<std::string>{""});
}

}  // namespace
}  // namespace tandem
