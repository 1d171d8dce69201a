// Processes without the job's secret, of other users or of this one, get nothing from ranks that
// meet; and a rank with a damaged or hostile peer ends with a clear error.
#include <atomic>
#include <cstring>
#include <fstream>
#include <new>
#include <set>
#include <span>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "actors/collectives/secret.hpp"
#include "actors/collectives/shm/shm_bootstrap.hpp"
#include "runtime/system/owned_descriptor.hpp"
#include "tests/support/shm_world.hpp"
#include "tests/support/strangers/other_user.hpp"
#include "tests/support/strangers/shm_hello.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using test::call_rank_0;
using test::OtherUser;
using test::random_job;
using test::run_ranks;
using test::ShmHello;
using test::ShmRank;
using test::unix_socket;
using test::UnixAddress;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

/// "5 bytes, a descriptor": what comes over the socket until its end.
std::string received(int socket) {
  char bytes[256];
  iovec part{bytes, sizeof(bytes)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (got < 0) {
    return "an error";
  }
  return fmt::format("{} bytes, {} descriptor", got,
                     CMSG_FIRSTHDR(&message) != nullptr ? "a" : "no");
}

// It has taken the name of rank 0 before rank 0 did: more than it can guess.
TEST(ShmStrangers, AnotherUserWhoPosesAsRankZeroGetsNothing) {
  TANDEM_NEEDS_ANOTHER_USER();
  const ShmBackend::Options options{.world = 2, .job = random_job(), .connect_timeout = 20s};
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const OtherUser stranger([&] {
    const OwnedDescriptor listener = unix_socket();
    const UnixAddress name(shm_name(options.job, 0));
    const bool bound =
        ::bind(listener.get(), name.get(), name.length) == 0 && ::listen(listener.get(), 8) == 0;
    (void)!::write(ready[1], "x", 1);
    for (;;) {
      const OwnedDescriptor caller(::accept(listener.get(), nullptr, nullptr));
      if (!bound || caller.get() < 0) {
        return std::string("no call");
      }
      // Tests beside this one call every name that they can read.
      if (peer_of(caller.get()).value_or(SocketPeer()).process == ::getppid()) {
        return received(caller.get());
      }
    }
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  std::string error_of_1;
  std::thread rank_1([&] {
    ShmBackend::Options mine = options;
    mine.rank = 1;
    try {
      ShmRank rank(mine);
    } catch (const std::exception& error) {
      error_of_1 = error.what();
    }
  });
  EXPECT_EQ(stranger.take(), "0 bytes, no descriptor");  // and with its end the name is free
  ShmBackend::Options mine = options;
  mine.rank = 0;
  EXPECT_NO_THROW(ShmRank rank(mine));
  rank_1.join();
  EXPECT_EQ(error_of_1, "");
  ::close(ready[0]);
  ::close(ready[1]);
}

/// The names of ranks that are listened at, as every user can read them.
std::set<std::string> names_in_use() {
  std::set<std::string> names;
  std::ifstream in("/proc/net/unix");
  for (std::string line; std::getline(in, line);) {
    if (const std::size_t at = line.find("@tandem-"); at != std::string::npos) {
      names.insert(line.substr(at + 1));
    }
  }
  return names;
}

TEST(ShmStrangers, AnotherUserWhoReadsTheNamesGetsNothingAndStopsNothing) {
  TANDEM_NEEDS_ANOTHER_USER();
  const OtherUser stranger([&] {
    std::string told;
    std::set<std::string> tried;
    const auto until = std::chrono::steady_clock::now() + 2s;
    while (std::chrono::steady_clock::now() < until) {
      for (const std::string& name : names_in_use()) {
        const OwnedDescriptor socket = unix_socket();
        const UnixAddress address(name);
        if (::connect(socket.get(), address.get(), address.length) == 0) {
          (void)::send(socket.get(), "hello", 5, MSG_NOSIGNAL);
          tried.insert(received(socket.get()));
        }
      }
    }
    for (const std::string& some : tried) {
      told += some + "; ";
    }
    return told;
  });
  for (int round = 0; round < 20; ++round) {
    const auto errors = run_ranks(3, [](ShmRank&) {}, {.job = random_job()});
    EXPECT_EQ(errors, (std::vector<std::string>{"", "", ""}));
  }
  const std::string told = stranger.take();
  EXPECT_NE(told, "");  // it did come
  EXPECT_THAT(told, Not(HasSubstr("a descriptor")));
  EXPECT_THAT(told, Not(::testing::ContainsRegex("[1-9][0-9]* bytes")));
}

TEST(ShmStrangers, NamesTellNothingOfTheJob) {
  EXPECT_THAT(shm_name("a job of many characters", 0), Not(HasSubstr("job")));
  EXPECT_NE(shm_name("a", 0), shm_name("a", 1));
  EXPECT_NE(shm_name("a", 0), shm_name("b", 0));
}

// ---- a process of the same user --------------------------------------------
/// Returns rank 0's error when a process calls it as rank 1 of 2 and hands it `memory`.
std::string error_with_caller(ShmHello hello, bool knows_job, int memory) {
  const std::string job = random_job();
  if (knows_job) {
    hello.prove(job);
  }
  std::thread caller([&] {
    const OwnedDescriptor socket = call_rank_0(job);
    EXPECT_EQ(send_with_descriptor(socket.get(), std::as_bytes(std::span(&hello, 1)), memory),
              ssize_t{sizeof(hello)});
    EXPECT_EQ(received(socket.get()).substr(0, 1), knows_job && memory < 0 ? "8" : "0");
  });
  std::string text;
  try {
    ShmRank rank({.rank = 0, .world = 2, .job = job, .connect_timeout = 10s});
  } catch (const Error& error) {
    text = error.what();
  }
  caller.join();
  return text;
}

TEST(ShmStrangers, ACallerMustKnowTheJobAndSealItsMemory) {
  const OwnedDescriptor memory(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(memory.get(), 1 << 20), 0);
  EXPECT_THAT(error_with_caller({}, false, memory.get()), HasSubstr("does not know this job"));
  EXPECT_THAT(error_with_caller({}, true, memory.get()), HasSubstr("is not sealed"));
  EXPECT_THAT(error_with_caller({.arena_bytes = std::uint64_t{1} << 40}, true, memory.get()),
              HasSubstr("has 1048576 bytes, it said 1099511627776"));
  EXPECT_THAT(error_with_caller({.rank = 77}, true, memory.get()), HasSubstr("rank 77"));
}

TEST(ShmStrangers, ADescriptorOfAnArenaWritesNothing) {
  ShmArena arena(1 << 20);
  std::byte* own = arena.allocate(64);
  *own = std::byte{1};
  const int descriptor = arena.descriptor();
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0), MAP_FAILED);
  EXPECT_EQ(::pwrite(descriptor, "x", 1, 0), -1);
  EXPECT_EQ(::ftruncate(descriptor, 0), -1);
  EXPECT_EQ(::ftruncate(descriptor, 1 << 21), -1);
  void* const read = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, descriptor, 0);
  ASSERT_NE(read, MAP_FAILED);
  EXPECT_EQ(::mprotect(read, 4096, PROT_READ | PROT_WRITE), -1);
  *own = std::byte{2};  // the owner's mapping stays writable
  EXPECT_EQ(*static_cast<std::byte*>(read), std::byte{2});
  ::munmap(read, 4096);
}

// ---- a hostile peer ---------------------------------------------------------
/// Rank 0 of 2, which writes what it likes into its control block.
struct HostileRank {
  ShmArena arena{std::size_t{1} << 20};
  ShmControl* control = new (arena.allocate(sizeof(ShmControl))) ShmControl();
  std::vector<ShmPeer> peers;

  explicit HostileRank(const std::string& job) {
    peers = bootstrap_shm({.rank = 0, .world = 2, .job = job, .timeout = 20s}, arena);
  }
  void say(std::size_t channel, const ShmHeader& header) {
    control->channels[channel].headers[0] = header;
    control->channels[channel].counters[ShmChannel::kArrived].value.store(1);
    wake();
  }
  void wake() const {
    const char byte = 0;
    (void)::send(peers[1].socket.get(), &byte, 1, MSG_NOSIGNAL);
  }
};

/// Returns rank 1's error in its first operation of `kind`, while rank 0 does as `act` says.
std::string error_beside(const std::function<void(HostileRank&)>& act, bool reduces = false) {
  const std::string job = random_job();
  std::atomic<bool> ended = false;
  std::thread peer([&] {
    HostileRank hostile(job);
    act(hostile);
    while (!ended) {
      std::this_thread::sleep_for(1ms);
    }
  });
  std::string text;
  try {
    ShmRank rank({.rank = 1, .world = 2, .job = job, .connect_timeout = 20s, .timeout = 10s});
    constexpr std::size_t kBytes = 98'304;
    std::byte* memory = rank.backend->allocate(4 * kBytes);
    if (reduces) {
      rank.loop.run([](ShmBackend* b,
                       ReduceArguments a) -> Task<> { (void)co_await b->reduce_scatter_add(a); },
                    rank.backend.get(),
                    ReduceArguments{.block = memory,
                                    .block_type = DType::kF32,
                                    .accumulator = memory + 2 * kBytes,
                                    .shard_elements = kBytes / 4});
    } else {
      rank.loop.run([](ShmBackend* b, GatherArguments a) -> Task<> { co_await b->all_gather(a); },
                    rank.backend.get(), GatherArguments{memory, memory + kBytes, kBytes});
    }
  } catch (const PeerLost& lost) {
    text = fmt::format("rank {}: {}", lost.rank(), lost.what());
  }
  ended = true;
  peer.join();
  return text;
}

TEST(ShmStrangers, AnOperandMustLieInItsOwnersMemory) {
  const std::uint64_t far[] = {~std::uint64_t{0}, ~std::uint64_t{0} - 98'303,
                               std::uint64_t{1} << 40, (std::uint64_t{1} << 20) - 4};
  for (const std::uint64_t offset : far) {
    for (const std::uint32_t staged : {0U, 1U}) {
      const std::string error = error_beside([=](HostileRank& hostile) {
        hostile.say(
            0,
            {.kind = ShmKind::kAllGather, .is_staged = staged, .bytes = 98'304, .offset = offset});
      });
      EXPECT_THAT(error, HasSubstr(fmt::format("rank 0: [collectives] rank 0 gives all-gather 0 of "
                                               "98304 bytes at offset {}",
                                               offset)));
    }
  }
  EXPECT_THAT(error_beside(
                  [](HostileRank& hostile) {
                    hostile.say(1, {.kind = ShmKind::kReduceScatter,
                                    .types = static_cast<std::uint32_t>(DType::kF32) * 2,
                                    .bytes = 98'304,
                                    .offset = 900'096});  // one part would fit, both do not
                  },
                  true),
              HasSubstr("gives reduce-scatter 0 of 98304 bytes at offset 900096"));
}

TEST(ShmStrangers, ACauseIsOneShortLineAndItsRankOneOfTheRun) {
  const std::string error = error_beside([](HostileRank& hostile) {
    hostile.control->cause.fill('a');
    hostile.control->cause[1] = '\n';
    hostile.control->cause[2] = '\033';
    hostile.control->failed_rank = 77;
    hostile.control->state.store(ShmState::kAborted);
    hostile.wake();
  });
  EXPECT_THAT(error, ::testing::StartsWith("rank 0: [collectives] a  aaa"));
  EXPECT_LT(error.size(), 1200U);
}

}  // namespace
}  // namespace tandem
