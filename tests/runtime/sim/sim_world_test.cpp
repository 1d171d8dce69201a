// Ranks in virtual time: the same seed is the same execution, and what net and disk promise holds
// in all of them.
#include "runtime/sim/sim_world.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/io/file_io.hpp"
#include "runtime/scope.hpp"
#include "runtime/sim/sim_files.hpp"
#include "runtime/sim/sim_net.hpp"
#include "runtime/sim/sim_pool.hpp"
#include "runtime/sleep.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;

// Every rank sends numbered frames to every other one on two channels, and receives theirs.
struct Chatter {
  explicit Chatter(std::uint64_t seed, std::uint32_t ranks = 3)
      : world({.seed = seed, .ranks = ranks}), links(world, {}) {
    for (std::uint32_t r = 0; r < ranks; ++r) {
      nets.push_back(std::make_unique<Net>(links.attach(r)));
      scopes.push_back(std::make_unique<Scope>(world.loop(r), Name("chatter")));
      for (std::uint32_t peer = 0; peer < ranks; ++peer) {
        for (std::uint32_t channel = 0; channel < 2 && peer != r; ++channel) {
          scopes[r]->spawn("send", &Chatter::send, nets[r].get(), peer, channel);
          scopes[r]->spawn("recv", &Chatter::recv, nets[r].get(), peer, channel, &received);
        }
      }
    }
  }
  static Task<> send(Net* net, std::uint32_t peer, std::uint32_t channel) {
    for (std::uint32_t i = 0; i < kFrames; ++i) {
      const std::uint32_t frame[2] = {net->rank(), i};
      co_await net->send(peer, channel, std::as_bytes(std::span(frame)));
    }
  }
  static Task<> recv(Net* net, std::uint32_t peer, std::uint32_t channel, int* received) {
    for (std::uint32_t i = 0; i < kFrames; ++i) {
      std::uint32_t frame[2] = {};
      EXPECT_EQ(co_await net->recv(peer, channel, std::as_writable_bytes(std::span(frame))), 8U);
      EXPECT_EQ(frame[0], peer);
      EXPECT_EQ(frame[1], i);
      ++*received;
    }
  }
  bool done() const {
    for (std::uint32_t r = 0; r < scopes.size(); ++r) {
      if (world.alive(r) && scopes[r]->running() > 0) {
        return false;
      }
    }
    return true;
  }
  void bury(std::uint32_t rank) {
    links.cut(rank);
    world.bury(rank);
    EXPECT_EQ(world.run([&] { return scopes[rank]->running() == 0; }), SimWorld::End::kDone);
  }

  static constexpr std::uint32_t kFrames = 20;
  SimWorld world;
  SimNet links;
  std::vector<std::unique_ptr<Net>> nets;
  std::vector<std::unique_ptr<Scope>> scopes;
  int received = 0;
};

TEST(SimWorld, OneSeedIsOneExecution) {
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    std::uint64_t hash[2] = {};
    for (std::uint64_t& one : hash) {
      Chatter chatter(seed);
      EXPECT_EQ(chatter.world.run([&] { return chatter.done(); }), SimWorld::End::kDone);
      EXPECT_EQ(chatter.received, 3 * 2 * 2 * 20);
      EXPECT_EQ(chatter.links.frames_under_way(), 0U);
      one = chatter.world.log().hash();
    }
    EXPECT_EQ(hash[0], hash[1]) << "seed " << seed;
    hashes.insert(hash[0]);
  }
  EXPECT_EQ(hashes.size(), 8U) << "other seeds are other executions";
}

TEST(SimWorld, SaysStuckAndTimeUp) {
  SimWorld world({.seed = 1, .limit = 1s});
  Scope scope(world.loop(0));
  Event never;
  scope.spawn("waits", [](Event* event) -> Task<> { co_await *event; }, &never);
  EXPECT_EQ(world.run([&] { return scope.running() == 0; }), SimWorld::End::kStuck);
  EXPECT_NE(scope.describe().find("waits"), std::string::npos);
  EXPECT_NE(world.log().tail(5).find("rank  0  runs"), std::string::npos);
  never.set();
  EXPECT_EQ(world.run([&] { return scope.running() == 0; }), SimWorld::End::kDone);
  scope.spawn(
      "sleeps", [](StopToken stop) -> Task<> { co_await sleep_for(1h, stop); }, scope.stop_token());
  EXPECT_EQ(world.run([&] { return scope.running() == 0; }), SimWorld::End::kTimeUp);
  scope.request_stop();
  world.loop(0).run_ready(100);
}

TEST(SimNet, ADeadRankIsNamedByItsPeers) {
  Chatter chatter(5);
  chatter.world.after(50us, 1, [&] { chatter.world.kill(1); });
  EXPECT_EQ(chatter.world.run([&] { return chatter.done(); }), SimWorld::End::kDone);
  for (const std::uint32_t rank : {0U, 2U}) {
    ASSERT_FALSE(chatter.scopes[rank]->failures().empty());
    const std::exception_ptr error = chatter.scopes[rank]->failures().front().error;
    EXPECT_THAT([&] { std::rethrow_exception(error); },
                ThrowsError<PeerLost>(ExitCode::kPeer, HasSubstr("[net] rank 1 is lost: ")));
    EXPECT_THAT([&] { std::rethrow_exception(error); },
                Throws<PeerLost>(Property(&PeerLost::rank, 1U)));
  }
  chatter.bury(1);
}

TEST(SimNet, AbortNamesTheFailedRankEverywhere) {
  Chatter chatter(6, 4);
  chatter.world.after(50us, 3, [&] { chatter.nets[3]->abort(3); });
  EXPECT_EQ(chatter.world.run([&] { return chatter.done(); }), SimWorld::End::kDone);
  for (const auto& scope : chatter.scopes) {
    ASSERT_FALSE(scope->failures().empty());
    for (const TaskFailure& failure : scope->failures()) {
      EXPECT_THAT([&] { std::rethrow_exception(failure.error); },
                  Throws<PeerLost>(Property(&PeerLost::rank, 3U)));
    }
  }
}

TEST(SimNet, AStoppedReceiveTakesNoFrameAndTooLongFramesAreSaid) {
  SimWorld world({.seed = 2, .ranks = 2});
  SimNet links(world, {});
  Net net0(links.attach(0)), net1(links.attach(1));
  Scope stopped(world.loop(1)), rest(world.loop(1)), sender(world.loop(0));
  int got = 0;
  stopped.spawn(
      "stopped",
      [](Net* net, StopToken stop) -> Task<> {
        std::byte into[4];
        (void)co_await net->recv(0, 0, into, stop);
        ADD_FAILURE();
      },
      &net1, stopped.stop_token());
  EXPECT_EQ(world.run([] { return false; }), SimWorld::End::kStuck);
  stopped.request_stop();
  EXPECT_EQ(world.run([&] { return stopped.running() == 0; }), SimWorld::End::kDone);
  rest.spawn(
      "rest",
      [](Net* net, int* seen) -> Task<> {
        std::byte into[4];
        EXPECT_EQ(co_await net->recv(0, 0, into), 1U);
        *seen = static_cast<int>(into[0]);
        EXPECT_THAT(co_await outcome_of([&] { return net->recv(0, 0, into); }),
                    ThrowsError(HasSubstr("a frame of 5 bytes came, there is room for 4")));
      },
      &net1, &got);
  sender.spawn(
      "sender",
      [](Net* net) -> Task<> {
        const std::byte frame[5] = {std::byte{9}};
        co_await net->send(1, 0, std::span(frame, 1));
        co_await net->send(1, 0, frame);
      },
      &net0);
  EXPECT_EQ(world.run([&] { return rest.running() == 0; }), SimWorld::End::kDone);
  EXPECT_EQ(got, 9);
}

TEST(SimPool, ChunksRunInVirtualTimeAndOnce) {
  SimWorld world({.seed = 4});
  SimPool workers(world, 0, {.threads = 3});
  CpuPool pool(world.loop(0), {.threads = 3, .driver = &workers});
  Scope scope(world.loop(0));
  std::vector<int> runs(50);
  for (int job = 0; job < 4; ++job) {
    scope.spawn(
        "job",
        [](CpuPool* p, std::vector<int>* out) -> Task<> {
          co_await p->for_chunks(out->size(), [out](std::size_t chunk) { ++(*out)[chunk]; });
        },
        &pool, &runs);
  }
  EXPECT_EQ(world.run([&] { return scope.running() == 0; }), SimWorld::End::kDone);
  EXPECT_EQ(runs, std::vector<int>(50, 4));
  EXPECT_GT(world.elapsed(), 1ms);
}

// Writes in pieces and reads back, through faults that FileIo carries through.
Task<> write_and_read(FileIo* io, std::size_t bytes) {
  std::vector<std::byte> data(bytes), back(bytes + 10);
  for (std::size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<std::byte>(i * 7);
  }
  IoFile file = co_await io->open("run/state.tmp", OpenMode::kCreate);
  co_await io->write(file, 0, data);
  co_await io->fsync(file);
  co_await io->close(std::move(file));
  co_await io->rename("run/state.tmp", "run/state");
  co_await io->fsync_folder("run");
  IoFile again = co_await io->open("run/state", OpenMode::kRead);
  EXPECT_EQ(co_await io->read(again, 0, back), bytes);
  back.resize(bytes);
  EXPECT_EQ(back, data);
  co_await io->close(std::move(again));
}

TEST(SimFiles, ShortTransfersAndInterruptionsAreCarriedThrough) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SimWorld world({.seed = seed});
    SimDisk disk;
    disk.put_folder("run");
    auto files = std::make_unique<SimFiles>(
        world, 0, disk, SimFiles::Faults{.short_transfer = 0.5, .interrupted = 0.2, .busy = 0.2});
    SimFiles& backend = *files;
    FileIo io(world.loop(0), std::move(files));
    Scope scope(world.loop(0));
    scope.spawn("writer", &write_and_read, &io, std::size_t{5000});
    EXPECT_EQ(world.run([&] { return scope.running() == 0; }), SimWorld::End::kDone);
    EXPECT_TRUE(scope.failures().empty());
    EXPECT_EQ(backend.open_files(), 0U);
    Random random(seed);
    disk.crash(random);
    ASSERT_NE(disk.find("run/state"), nullptr);
    EXPECT_EQ(disk.find("run/state")->size(), 5000U);
  }
}

Task<> write_and_read_blocks(FileIo* io, std::size_t blocks, std::size_t* changes) {
  constexpr std::size_t kBlock = FileIo::kDirectAlignment;
  std::vector<std::byte> memory((blocks + 1) * kBlock, std::byte{3});
  void* at = memory.data();
  std::size_t room = memory.size();
  std::align(kBlock, blocks * kBlock, at, room);
  const std::span<std::byte> whole(static_cast<std::byte*>(at), blocks * kBlock);
  IoFile file = co_await io->open_direct("file", OpenMode::kReadWrite);
  *changes = 0;
  co_await io->write(file, 0, whole);
  std::ranges::fill(whole, std::byte{0});
  EXPECT_EQ(co_await io->read(file, 0, whole), whole.size());
  EXPECT_EQ(std::ranges::count(whole, std::byte{3}), std::ssize(whole));
  co_await io->close(std::move(file));
}

// Past the page cache a disk moves whole blocks, and what it has not moved goes on from there.
TEST(SimFiles, DirectTransfersAreCutBetweenBlocks) {
  std::set<std::size_t> calls;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SimWorld world({.seed = seed});
    SimDisk disk;
    std::size_t changes = 0;
    disk.on_change([&] { ++changes; });
    FileIo io(world.loop(0),
              std::make_unique<SimFiles>(world, 0, disk, SimFiles::Faults{.short_transfer = 0.5}));
    Scope scope(world.loop(0));
    scope.spawn("writer", &write_and_read_blocks, &io, std::size_t{6}, &changes);
    EXPECT_EQ(world.run([&] { return scope.running() == 0; }), SimWorld::End::kDone);
    EXPECT_TRUE(scope.failures().empty());
    calls.insert(changes);
  }
  EXPECT_GT(calls.size(), 2U) << "a write is one call, two, or more";
}

TEST(SimFiles, AFullDiskIsSaid) {
  SimWorld world({.seed = 1});
  SimDisk disk({.capacity_bytes = 3000});
  disk.put_folder("run");
  FileIo io(world.loop(0), std::make_unique<SimFiles>(world, 0, disk, SimFiles::Faults{}));
  Scope scope(world.loop(0));
  scope.spawn("writer", &write_and_read, &io, std::size_t{5000});
  EXPECT_EQ(world.run([&] { return scope.running() == 0; }), SimWorld::End::kDone);
  ASSERT_EQ(scope.failures().size(), 1U);
  EXPECT_THAT([&] { std::rethrow_exception(scope.failures().front().error); },
              Throws<FileError>(Property(&FileError::error_number, ENOSPC)));
  EXPECT_EQ(disk.used_bytes(), 3000U);
}

TEST(SimFiles, ACrashKeepsOnlyWhatWasSynced) {
  SimWorld world({.seed = 1});
  SimDisk disk;
  disk.put("old", std::vector<std::byte>(2048, std::byte{1}));
  FileIo io(world.loop(0), std::make_unique<SimFiles>(world, 0, disk, SimFiles::Faults{}));
  Scope scope(world.loop(0));
  scope.spawn(
      "writer",
      [](FileIo* files) -> Task<> {
        const std::vector<std::byte> data(2048, std::byte{2});
        IoFile fresh = co_await files->open("new", OpenMode::kCreate);
        co_await files->write(fresh, 0, data);
        IoFile old = co_await files->open("old", OpenMode::kReadWrite);
        co_await files->write(old, 0, data);
        co_await files->close(std::move(fresh));
        co_await files->close(std::move(old));
      },
      &io);
  EXPECT_EQ(world.run([&] { return scope.running() == 0; }), SimWorld::End::kDone);
  std::set<bool> new_there;
  std::set<std::byte> seen;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    const SimDisk found =
        disk.after_power_cut([&](const SimDisk::Piece&) { return random.chance(0.5); });
    new_there.insert(found.find("new") != nullptr);
    seen.insert(found.find("old")->begin(), found.find("old")->end());
  }
  EXPECT_EQ(new_there.size(), 2U) << "its name may survive, or not";
  EXPECT_EQ(seen, (std::set<std::byte>{std::byte{1}, std::byte{2}})) << "torn";
  const SimDisk found = disk.after_power_cut([](const SimDisk::Piece&) { return false; });
  EXPECT_EQ(found.find("new"), nullptr);
  EXPECT_EQ(*found.find("old"), std::vector<std::byte>(2048, std::byte{1}));
}

}  // namespace
}  // namespace tandem
