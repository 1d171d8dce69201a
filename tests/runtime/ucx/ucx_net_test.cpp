// Tests that only a net over UCX can have: ranks that are processes and die, ranks that leave,
// other runs' messages, memory that is registered.
#include "runtime/ucx/ucx_net.hpp"

#include <array>
#include <csignal>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "runtime/sleep.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/net_ranks.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::ChildProcess;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;

class UcxNet : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!ucx_support().usable) {
      GTEST_SKIP() << "no UCX: " << ucx_support().what;
    }
  }
};

// Where ranks that are processes learn each other's addresses.
class SharedAddresses {
 public:
  explicit SharedAddresses(std::uint32_t world) : world_(world) {
    void* memory = ::mmap(nullptr, sizeof(Entry) * world, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    entries_ = static_cast<Entry*>(memory);
  }
  ~SharedAddresses() { ::munmap(entries_, sizeof(Entry) * world_); }
  SharedAddresses(const SharedAddresses&) = delete;
  SharedAddresses& operator=(const SharedAddresses&) = delete;

  std::vector<std::string> all(std::uint32_t rank, const std::string& mine) const {
    TANDEM_CHECK(mine.size() <= sizeof(Entry::text), "an address has room");
    std::ranges::copy(mine, entries_[rank].text);
    entries_[rank].bytes.store(mine.size());
    std::vector<std::string> addresses;
    for (std::uint32_t of = 0; of < world_; ++of) {
      while (entries_[of].bytes == 0) {
        std::this_thread::sleep_for(1ms);
      }
      addresses.emplace_back(entries_[of].text, entries_[of].bytes);
    }
    return addresses;
  }

 private:
  struct Entry {
    std::atomic<std::size_t> bytes;
    char text[1000];
  };
  std::uint32_t world_;
  Entry* entries_;
};

using Body = Task<> (*)(Net*, int pipe);

std::vector<std::unique_ptr<ChildProcess>> start_processes(std::uint32_t world,
                                                           const SharedAddresses& addresses,
                                                           Body body) {
  std::vector<std::unique_ptr<ChildProcess>> processes;
  processes.reserve(world);
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    processes.push_back(std::make_unique<ChildProcess>([=, &addresses](int pipe) {
      EventLoop loop;
      Net net(connect_ucx_net(loop, loopback_options(rank, world),
                              [&](const std::string& mine) { return addresses.all(rank, mine); }));
      loop.run(body, &net, pipe);
    }));
  }
  return processes;
}

void say_ready(int pipe) { EXPECT_EQ(::write(pipe, "r", 1), 1); }

// Ranks 0 and 1 wait for rank 2, which is killed: each in a receive of its own.
TEST_F(UcxNet, AKilledProcessIsNamedByAll) {
  const SharedAddresses addresses(3);
  const auto ranks = start_processes(3, addresses, [](Net* net, int pipe) -> Task<> {
    say_ready(pipe);
    std::byte into[8];
    co_await net->recv(net->rank() == 2 ? 0 : 2, 0, into);
  });
  for (const auto& rank : ranks) {
    rank->wait_for_byte();
  }
  ranks[2]->signal(SIGKILL);
  for (const int witness : {0, 1}) {
    EXPECT_THAT(ranks[witness]->text(), HasSubstr("[net] rank 2 is lost: receive from rank 2"));
    EXPECT_EQ(WEXITSTATUS(ranks[witness]->wait()), static_cast<int>(ExitCode::kPeer));
  }
  EXPECT_EQ(WTERMSIG(ranks[2]->wait()), SIGKILL);
}

// Rank 0 sees rank 2's death and gives up; rank 1 waits for rank 0 alone, and blames rank 2.
TEST_F(UcxNet, AWitnessIsNotBlamed) {
  const SharedAddresses addresses(3);
  const auto ranks = start_processes(3, addresses, [](Net* net, int pipe) -> Task<> {
    say_ready(pipe);
    std::byte into[8];
    std::optional<std::uint32_t> failed;
    try {
      co_await net->recv(net->rank() == 0 ? 2 : 0, 0, into);
    } catch (const PeerLost& lost) {
      failed = lost.rank();
      net->abort(lost.rank());
      throw;
    }
  });
  for (const auto& rank : ranks) {
    rank->wait_for_byte();
  }
  ranks[2]->signal(SIGKILL);
  for (const int witness : {0, 1}) {
    EXPECT_THAT(ranks[witness]->text(), HasSubstr("[net] rank 2 is lost"));
    EXPECT_EQ(WEXITSTATUS(ranks[witness]->wait()), static_cast<int>(ExitCode::kPeer));
  }
  static_cast<void>(ranks[2]->wait());
}

// Frames that UCX moves, the longest and a shorter one that it copies.
constexpr std::array<std::size_t, 4> kFrameBytes = {20'000'000, 312'500, (60 << 10) - 1, 4'882};

// While frames move in both directions, with others behind them.
TEST_F(UcxNet, AProcessThatIsKilledInTheMiddleOfFramesIsLost) {
  const SharedAddresses addresses(2);
  const auto ranks = start_processes(2, addresses, [](Net* net, int pipe) -> Task<> {
    co_await with_scope(
        [](Scope& scope, Net* n, int ready) -> Task<> {
          for (std::uint32_t channel = 0; channel < kFrameBytes.size(); ++channel) {
            scope.spawn(
                "send",
                [](Net* of, std::uint32_t on) -> Task<> {
                  const std::vector<std::byte> frame(kFrameBytes[on]);
                  for (;;) {
                    co_await of->send(1 - of->rank(), on, frame);
                  }
                },
                n, channel);
            scope.spawn(
                "receive",
                [](Net* of, std::uint32_t on, int first) -> Task<> {
                  std::vector<std::byte> frame(kFrameBytes[on]);
                  for (int i = 0;; ++i) {
                    co_await of->recv(1 - of->rank(), on, frame);
                    if (i == 2 && on == 0) {
                      say_ready(first);
                    }
                  }
                },
                n, channel, ready);
          }
          co_return;
        },
        net, pipe);
  });
  for (const auto& rank : ranks) {
    rank->wait_for_byte();
  }
  ranks[1]->signal(SIGKILL);
  EXPECT_THAT(ranks[0]->text(), HasSubstr("[net] rank 1 is lost"));
  EXPECT_EQ(WEXITSTATUS(ranks[0]->wait()), static_cast<int>(ExitCode::kPeer));
  static_cast<void>(ranks[1]->wait());
}

struct Nothing {};

// More than the sockets hold, while the receiver looks at nothing: the last of it leaves its sender
// when that leaves.
TEST_F(UcxNet, WhatALeavingRankSentArrivesAndThenItIsLost) {
  static constexpr std::uint32_t kChannels = 200;
  Nothing nothing;
  on_ucx_ranks(
      2,
      +[](Net* net, Nothing* /*shared*/) -> Task<> {
        std::vector<std::byte> frame(8000, std::byte{7});
        if (net->rank() == 0) {
          for (std::uint32_t i = 0; i < kChannels * 8; ++i) {
            co_await net->send(1, i % kChannels, frame);
          }
          co_return;
        }
        std::this_thread::sleep_for(100ms);
        for (std::uint32_t i = 0; i < kChannels * 8; ++i) {
          std::ranges::fill(frame, std::byte{0});
          EXPECT_EQ(co_await net->recv(0, i % kChannels, frame), frame.size());
          EXPECT_EQ(frame.back(), std::byte{7});
        }
        EXPECT_THAT(co_await outcome_of([&] { return net->recv(0, 0, frame); }),
                    Throws<PeerLost>(Property(&PeerLost::rank, 0U)));
        EXPECT_THAT(co_await outcome_of([&] { return net->send(0, 0, frame); }),
                    Throws<PeerLost>(Property(&PeerLost::rank, 0U)));
      },
      &nothing);
}

// A rank of another run that has this run's addresses and calls itself rank 1: what it says, its
// farewell among it, is not taken for rank 1's.
TEST_F(UcxNet, AnotherRunsKeyIsNotHeard) {
  AddressBook book(2);
  std::promise<std::string> address_of_0;
  std::promise<void> stranger_is_gone;
  std::thread rank_0([&] {
    EventLoop loop;
    Net net(connect_on_loopback(loop, loopback_options(0, 2), book));
    loop.run(
        [](Net* n) -> Task<> {
          std::byte frame[4] = {};
          const auto outcome = co_await outcome_of([&] { return n->recv(1, 0, frame); });
          EXPECT_NO_THROW(outcome());
        },
        &net);
  });
  std::thread rank_1([&] {
    EventLoop loop;
    std::string address;
    Net net(connect_ucx_net(loop, loopback_options(1, 2), [&](const std::string& mine) {
      const std::vector<std::string> all = book.all(1, mine);
      address = all[0];
      return all;
    }));
    address_of_0.set_value(address);
    stranger_is_gone.get_future().wait();
    loop.run(
        [](Net* n) -> Task<> {
          std::byte frame[1] = {};
          EXPECT_NO_THROW((co_await outcome_of([&] { return n->send(0, 0, frame); }))());
        },
        &net);
  });
  EventLoop loop;
  UcxNetOptions other = loopback_options(1, 2);
  other.run_key ^= 1;
  other.connect_timeout = 300ms;
  other.linger = 100ms;
  const std::string address = address_of_0.get_future().get();
  EXPECT_THAT(
      [&] {
        (void)connect_ucx_net(loop, other, [&](const std::string& mine) {
          return std::vector<std::string>{address, mine};
        });
      },
      ThrowsError(ExitCode::kPeer,
                  HasSubstr("rank 1 receives nothing from rank 0 over UCX within 0 s")));
  stranger_is_gone.set_value();
  rank_1.join();
  rank_0.join();
}

TEST_F(UcxNet, FramesLieInRegisteredMemory) {
  struct Arena {
    std::vector<std::byte> memory = std::vector<std::byte>(std::size_t{4} << 20);
  } arenas[2];
  on_ucx_ranks(
      2,
      +[](Net* net, Arena(*all)[2]) -> Task<> {
        std::span<std::byte> memory = (*all)[net->rank()].memory;
        net->register_memory(memory);
        const std::span<std::byte> half = memory.subspan(1 << 20, 2 << 20);
        if (net->rank() == 0) {
          std::ranges::fill(memory, std::byte{3});
          co_await net->send(1, 0, half);
          co_await net->send(1, 0, half.first(100));
        } else {
          EXPECT_EQ(co_await net->recv(0, 0, half), half.size());
          EXPECT_EQ(std::ranges::count(memory, std::byte{3}), 2 << 20);
          EXPECT_EQ(co_await net->recv(0, 0, memory), 100U);
        }
      },
      &arenas);
}

}  // namespace
}  // namespace tandem
