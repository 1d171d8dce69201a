// Errors of ranks with GPUs when a device hangs or fails, or when NCCL does, beside
// tests/actors/collectives/rank_faults_test.cpp: in all operations every rank ends in bounded time,
// with its communicators aborted, and names what it knows.
#include <latch>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/sleep.hpp"
#include "tests/support/nccl_world.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::FakeCuda;
using test::FakeNccl;
using test::kOperations;
using test::NcclRank;
using test::NcclWorld;
using test::operate_times;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Three ranks, each kind of operation in a world of its own; the first two go well.
void for_each_kind(const std::function<void(NcclWorld&, std::size_t kind)>& body) {
  for (std::size_t kind = 0; kind < kOperations.size(); ++kind) {
    SCOPED_TRACE(kOperations[kind]);
    NcclWorld w(3);
    w.connect();
    w.run([kind](NcclRank& rank) { return operate_times(&rank, kind, 2); });
    ASSERT_EQ(w.errors(), std::vector<std::string>(3));
    body(w, kind);
  }
}

std::string third(std::size_t kind) { return fmt::format("{} 2", kOperations[kind]); }

/// Ended by PeerLost within `limit` of virtual time, its communicators aborted.
void expect_lost(const NcclWorld& w, std::uint32_t rank, TimePoint since, Duration limit,
                 std::uint32_t failed_rank) {
  SCOPED_TRACE(rank);
  EXPECT_THAT(w.ranks[rank].error, StartsWith("[collectives] "));
  EXPECT_THAT(w.ranks[rank].error, HasSubstr(fmt::format("cannot end on rank {}", rank)));
  EXPECT_EQ(w.ranks[rank].code, static_cast<int>(ExitCode::kPeer));
  EXPECT_EQ(w.ranks[rank].failed_rank, failed_rank);
  EXPECT_LE(w.ranks[rank].ended - since, limit + 20ms);
}

TEST(NcclFaults, ARankWhoseDeviceStandsStillIsEndedByTheDeadline) {
  for_each_kind([](NcclWorld& w, std::size_t kind) {
    const TimePoint since = w.clock.now();
    w.nccl.stands_still[1] = true;
    w.run([kind](NcclRank& rank) { return operate_times(&rank, kind, 1); });
    for (std::uint32_t r = 0; r < 3; ++r) {
      expect_lost(w, r, since, 2s, kUnknownRank);
      EXPECT_THAT(w.ranks[r].error, HasSubstr(third(kind) + " did not end within 2 s"));
      EXPECT_GE(w.ranks[r].ended - since, 2s);
    }
    EXPECT_EQ(w.nccl.aborted(), 6);
    EXPECT_EQ(w.nccl.live(), 0);
  });
}

TEST(NcclFaults, AnErrorOfNcclBreaksTheRankAndItsPeers) {
  for_each_kind([](NcclWorld& w, std::size_t kind) {
    const TimePoint since = w.clock.now();
    w.nccl.stands_still[0] = true;  // so that the operation is under way
    w.nccl.fail(2, NcclResult::kRemoteError);
    w.run([kind](NcclRank& rank) { return operate_times(&rank, kind, 1); });
    for (std::uint32_t r = 0; r < 3; ++r) {
      expect_lost(w, r, since, 0s, kUnknownRank);
      EXPECT_THAT(w.ranks[r].error, HasSubstr("NCCL says \"remote process exited\""));
    }
  });
}

TEST(NcclFaults, ACallThatNcclRefusesIsSaidSo) {
  for_each_kind([](NcclWorld& w, std::size_t kind) {
    w.nccl.refuses[0] = NcclResult::kInvalidArgument;
    w.run([kind](NcclRank& rank) { return operate_times(&rank, kind, 1); });
    for (std::uint32_t r = 0; r < 3; ++r) {
      EXPECT_THAT(w.ranks[r].error, HasSubstr("NCCL says \"an error\""));
      EXPECT_EQ(w.ranks[r].code, static_cast<int>(ExitCode::kPeer));
    }
    EXPECT_EQ(w.nccl.aborted(), 6);
  });
}

TEST(NcclFaults, ADeviceThatFailsIsItsRanksFault) {
  for_each_kind([](NcclWorld& w, std::size_t kind) {
    const TimePoint since = w.clock.now();
    w.run([&w, kind](NcclRank& rank) -> Task<> {
      return [](NcclWorld* world, NcclRank* r, std::size_t k) -> Task<> {
        if (r == &world->ranks[1]) {
          r->device->check(FakeCuda::kIllegalAddress, "a kernel failed");
        }
        co_await operate_times(r, k, 1);
      }(&w, &rank, kind);
    });
    EXPECT_THAT(w.ranks[1].error, HasSubstr("[device] gpu 1: a kernel failed"));
    for (const std::uint32_t r : {0U, 2U}) {
      expect_lost(w, r, since, 0s, 1);
      EXPECT_THAT(w.ranks[r].error, HasSubstr("rank 1 aborted: its device failed"));
    }
  });
}

Task<> exchange_behind_work(NcclRank* rank, const bool* stuck) {
  const DeviceBuffer from = rank->buffer(128);
  const DeviceBuffer into = rank->buffer(128);
  DeviceStream compute = rank->device->stream("compute", CudaDevice::Priority::kNormal);
  FakeCuda::of_test().launch(rank->device->native(compute),
                             {.ready = [stuck] { return !*stuck; }, .cost = 1us});
  const DeviceEvent computed = compute.record();
  co_await rank->backend->all_to_all({from.data(), into.data(), 64, &computed});
}

// The operands of an exchange are computed first, and by one rank never.
TEST(NcclFaults, AGpuThatDoesNotComeToAnExchangeIsItsRanksFault) {
  std::array<bool, 3> stuck = {false, true, false};  // looked at until the world's end
  NcclWorld w(3);
  w.connect([](NcclBackend::Options& options) { options.reduces = false; });
  const TimePoint since = w.clock.now();
  w.run([&](NcclRank& rank) { return exchange_behind_work(&rank, &stuck[rank.backend->rank()]); });
  for (std::uint32_t r = 0; r < 3; ++r) {
    expect_lost(w, r, since, 2s, 1);
    EXPECT_THAT(w.ranks[r].error,
                AnyOf(HasSubstr("the GPU of rank 1 did not come to all-to-all 0 within 2 s"),
                      HasSubstr("rank 1 did not arrive at all-to-all 0 within 2 s")));
  }
  stuck[1] = false;
}

// Without a word between the ranks each of them still ends, by its own deadline.
TEST(NcclFaults, SilentPeersEndByTheirOwnDeadlines) {
  NcclWorld w(3);
  w.connect();
  w.peers.be_silent();
  w.nccl.stands_still[1] = true;
  const TimePoint since = w.clock.now();
  w.run([](NcclRank& rank) { return operate_times(&rank, 3, 1); });
  for (std::uint32_t r = 0; r < 3; ++r) {
    expect_lost(w, r, since, 2s, kUnknownRank);
  }
}

TEST(NcclFaults, AfterwardsBothSequencesFailAtOnceWithTheFirstCause) {
  NcclWorld w(2);
  w.connect();
  w.ranks[0].backend->abort("first");
  w.ranks[0].backend->abort("second");
  for (std::size_t kind = 0; kind < kOperations.size(); ++kind) {
    const TimePoint since = w.clock.now();
    w.run([kind](NcclRank& rank) { return operate_times(&rank, kind, 1); });
    for (std::uint32_t r = 0; r < 2; ++r) {
      expect_lost(w, r, since, 0s, 0);
      EXPECT_THAT(w.ranks[r].error, HasSubstr("rank 0 aborted: first"));
    }
  }
  EXPECT_EQ(w.nccl.aborted(), 4);
}

// Behind the aborted transfer the stream has the kernel that would have added; the buffers are not
// the caller's before.
Task<> lose_reduction(NcclRank* rank) {
  const DeviceBuffer block = rank->buffer(std::size_t{512} * 4 * 3);
  const DeviceBuffer sum = rank->buffer(512 * 4);
  std::string error;
  try {
    (void)co_await rank->backend->reduce_scatter_add(
        {.block = block.data(), .accumulator = sum.data(), .shard_elements = 512});
  } catch (const PeerLost& lost) {
    error = lost.what();
  }
  EXPECT_THAT(error, HasSubstr("reduce-scatter 0 did not end within 2 s"));
  std::memset(sum.data(), 0x11, 512 * 4);
  co_await sleep_for(10ms);
  (void)rank->device->free_bytes();  // the fake's time goes on in calls
  EXPECT_EQ(sum.data()[0], std::byte{0x11});
}

TEST(NcclFaults, NothingWritesIntoTheBuffersOfAnOperationThatHasEnded) {
  NcclWorld w(3);
  w.connect();
  w.nccl.stands_still[1] = true;
  w.run([](NcclRank& rank) { return lose_reduction(&rank); });
  EXPECT_EQ(w.errors(), std::vector<std::string>(3));
}

TEST(NcclFaults, AnAbortThatHangsEndsTheProcess) {
  for_each_kind([](NcclWorld& w, std::size_t kind) {
    const TimePoint since = w.clock.now();
    w.abort_on_threads = true;
    w.nccl.abort_hangs = true;
    w.nccl.stands_still[2] = true;
    w.run([kind](NcclRank& rank) { return operate_times(&rank, kind, 1); });
    ASSERT_EQ(w.process_ends.size(), 3U);  // each rank's process, once
    for (const std::string& why : w.process_ends) {
      EXPECT_THAT(why, StartsWith("[nccl] "));
      EXPECT_THAT(why, HasSubstr("the abort that followed did not end within 5 s"));
    }
    for (std::uint32_t r = 0; r < 3; ++r) {
      expect_lost(w, r, since, 7s, kUnknownRank);
      EXPECT_GE(w.ranks[r].ended - since, 7s);
    }
    EXPECT_EQ(w.nccl.aborted(), 0);
  });
}

TEST(NcclFaults, ConnectingHasADeadline) {
  for (const int questions : {0, 3}) {
    NcclWorld w(2);
    w.nccl.questions = questions;
    w.nccl.never_connects[1] = true;
    w.connect();
    EXPECT_THAT(w.ranks[1].error, HasSubstr("the connection for gathers did not end within 3 s"));
    EXPECT_EQ(w.ranks[1].code, static_cast<int>(ExitCode::kPeer));
    EXPECT_LE(w.clock.now().time_since_epoch(), 3s + 20ms);
    EXPECT_GE(w.clock.now().time_since_epoch(), 3s);
  }
}

TEST(NcclFaults, HostMemoryThatCannotBePinnedIsRefused) {
  NcclWorld later(1);
  later.connect();
  later.cuda.pinned_limit = 0;
  EXPECT_EQ(later.ranks[0].backend->allocate(100)[99], std::byte{0});  // fits the last piece
  EXPECT_THAT([&] { (void)later.ranks[0].backend->allocate(std::size_t{64} << 20); },
              ThrowsError(ExitCode::kRefused));
}

TEST(NcclFaults, WithoutPinnedMemoryThereIsNoBackEnd) {
  NcclWorld w(2);
  w.cuda.pinned_limit = 0;
  w.connect();
  for (const NcclRank& rank : w.ranks) {
    EXPECT_THAT(rank.error, HasSubstr("bytes of host memory cannot be pinned for gpu"));
  }
}

// A communicator that is made while an abort runs does not stay behind.
TEST(NcclFaults, WhatIsAdoptedAfterTheAbortIsAbortedToo) {
  const ManualClock clock;
  const FakeCuda cuda(clock);
  FakeNccl nccl;
  NcclWatchdog watchdog(
      FakeNccl::api(),
      {.clock = &clock, .run_abort = [](const auto& abort) { abort(); }, .own_thread = false});
  watchdog.abort("too late");
  watchdog.check(clock.now());
  EXPECT_TRUE(watchdog.released());
  NcclConfig config;
  config.blocking = 0;
  config.name = "late";
  void* communicator = nullptr;
  EXPECT_EQ(FakeNccl::api().init_rank(&communicator, 1, {}, 0, &config), NcclResult::kSuccess);
  watchdog.adopt(0, communicator);
  EXPECT_EQ(nccl.aborted(), 1);
  EXPECT_EQ(watchdog.open_calls(0), nullptr);
  watchdog.close_calls();
}

// ---- with threads, in real time: the watchdog's own, and an abort's ----
struct ThreadRank {
  EventLoop loop{{.name = "rank"}};
  std::shared_ptr<test::FakePeers::OfRank> peers;
  NcclRank rank;
  std::string process_end;
  std::latch* connected = nullptr;
};

Task<> make_and_run(ThreadRank* at, NcclBackend::Options options, int times) {
  at->rank.backend = co_await NcclBackend::connect(&at->loop, at->rank.device.get(), options);
  at->connected->arrive_and_wait();  // blocks the loop: nothing is under way yet
  for (int i = 0; i < times; ++i) {
    co_await operate_times(&at->rank, static_cast<std::size_t>(i) % kOperations.size(), 1);
  }
}

/// Ranks on threads of their own; what each threw.
std::vector<std::string> run_on_threads(FakeNccl& nccl, std::uint32_t world, int times,
                                        Duration timeout, bool* let_go) {
  test::FakePeers peers;
  peers.world = world;
  std::vector<std::string> errors(world);
  std::vector<std::thread> threads;
  std::latch all_ended(world);
  std::latch connected(world);
  for (std::uint32_t r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      ThreadRank at;
      at.connected = &connected;
      at.peers = std::make_shared<test::FakePeers::OfRank>(peers, r);
      at.rank.device = std::make_unique<CudaDevice>(
          at.loop, FakeCuda::api(), CudaDevice::Options{.name = fmt::format("gpu {}", r)});
      NcclBackend::Options options;
      options.rank = r;
      options.world = world;
      options.api = &FakeNccl::api();
      options.kernels = &test::fake_kernels();
      options.peers = at.peers;
      options.timeout = timeout;
      options.from_rank_0 = [](std::string_view key, const std::string& value) {
        std::string id(key);
        id.resize(value.size());
        return id;
      };
      options.watchdog.check_every = 5ms;
      options.watchdog.abort_limit = 100ms;
      options.watchdog.end_process = [&at](const std::string& why) { at.process_end = why; };
      try {
        at.loop.run(&make_and_run, &at, options, times);
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
      errors[r] += at.process_end;
      all_ended.arrive_and_wait();  // queued work uses other ranks' memory
      if (r == 0 && let_go != nullptr) {
        nccl.let_abort_go();
        *let_go = true;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

TEST(NcclThreads, OperateUnderTheWatchdogsEyes) {
  FakeCuda cuda(Clock::real());
  FakeNccl nccl;
  nccl.questions = 2;
  EXPECT_EQ(run_on_threads(nccl, 4, 60, 60s, nullptr), std::vector<std::string>(4));
  EXPECT_EQ(nccl.live(), 0);
  EXPECT_EQ(nccl.aborted(), 0);
}

TEST(NcclThreads, AreAbortedByIt) {
  FakeCuda cuda(Clock::real());
  FakeNccl nccl;
  nccl.stands_still[1] = true;
  for (const std::string& error : run_on_threads(nccl, 3, 1, 50ms, nullptr)) {
    // The error tells a rank that is slow to begin from a device that stands still.
    EXPECT_THAT(error,
                ::testing::ContainsRegex(
                    "(did not arrive at all-gather 0|all-gather 0 did not end) within 0.05 s"));
  }
  EXPECT_EQ(nccl.aborted(), 6);
}

TEST(NcclThreads, AnAbortThatHangsIsNotWaitedFor) {
  FakeCuda cuda(Clock::real());
  FakeNccl nccl;
  nccl.stands_still[1] = true;
  nccl.abort_hangs = true;
  bool let_go = false;
  for (const std::string& error : run_on_threads(nccl, 2, 1, 50ms, &let_go)) {
    EXPECT_THAT(error, HasSubstr("the abort that followed did not end within 0.1 s"));
  }
  EXPECT_TRUE(let_go);
  while (nccl.aborted() < 4) {  // their threads end, now that nothing holds them
    std::this_thread::yield();
  }
}

}  // namespace
}  // namespace tandem
