// The promises of net.hpp, over every kind of net.
#include <atomic>
#include <cstring>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/sleep.hpp"
#include "tests/support/net_ranks.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;

constexpr std::uint32_t kChannels = 3;
constexpr std::uint32_t kFrames = 40;
constexpr std::size_t kWindowsMax = 64;  // more frames than any kind takes ahead of a receiver

struct Nothing {};

class NetContract : public NetTest {
 protected:
  template <class Shared>
  static void on_ranks(std::uint32_t world, Task<> (*body)(Net*, Shared*), Shared* shared) {
    on_net_ranks(GetParam(), world, body, shared);
  }
  static void on_ranks(std::uint32_t world, Task<> (*body)(Net*, Nothing*)) {
    Nothing nothing;
    on_ranks(world, body, &nothing);
  }
};
INSTANTIATE_TEST_SUITE_P(Both, NetContract, kBothNets, name_of_net);

/// Its size and contents follow from where it goes and which one it is.
std::vector<std::byte> frame_of(std::uint32_t sender, std::uint32_t receiver, std::uint32_t channel,
                                std::uint32_t number) {
  constexpr std::size_t kSizes[] = {0, 1, 8, 1000, 8191, 8192, 8193, 70'000, 300'001};
  const std::uint32_t seed = sender * 7919 + receiver * 131 + channel * 31 + number;
  std::vector<std::byte> frame(kSizes[seed % std::size(kSizes)]);
  for (std::size_t i = 0; i < frame.size(); ++i) {
    frame[i] = static_cast<std::byte>(i * 13 + i / 251 + seed);
  }
  return frame;
}

Task<> send_frames(Net* net, std::uint32_t peer, std::uint32_t channel) {
  for (std::uint32_t i = 0; i < kFrames; ++i) {
    co_await net->send(peer, channel, frame_of(net->rank(), peer, channel, i));
  }
}

Task<> receive_frames(Net* net, std::uint32_t peer, std::uint32_t channel) {
  std::vector<std::byte> into(300'001);
  for (std::uint32_t i = 0; i < kFrames; ++i) {
    const std::size_t bytes = co_await net->recv(peer, channel, into);
    const std::vector<std::byte> expected = frame_of(peer, net->rank(), channel, i);
    EXPECT_TRUE(std::ranges::equal(std::span(into).first(bytes), expected))
        << "frame " << i << " of rank " << peer << " on channel " << channel;
  }
}

Task<> exchange_frames(Net* net, Nothing* /*shared*/) {
  co_await with_scope(
      [](Scope& scope, Net* n) -> Task<> {
        for (std::uint32_t peer = 0; peer < n->world(); ++peer) {
          for (std::uint32_t channel = 0; channel < kChannels && peer != n->rank(); ++channel) {
            scope.spawn("send", &send_frames, n, peer, channel);
            scope.spawn("receive", &receive_frames, n, peer, channel);
          }
        }
        co_return;
      },
      net);
}

TEST_P(NetContract, FramesArriveWholeOnceAndInOrder) {
  for (const std::uint32_t world : {2U, 3U, 4U}) {
    on_ranks(world, &exchange_frames);
  }
}

TEST_P(NetContract, AFrameOf64MiBIsWhole) {
  struct Big {
    std::vector<std::byte> sent = std::vector<std::byte>(std::size_t{64} << 20);
    std::vector<std::byte> received = std::vector<std::byte>(std::size_t{64} << 20);
  } big;
  for (std::size_t i = 0; i < big.sent.size(); ++i) {
    big.sent[i] = static_cast<std::byte>(i * 7 + i / 65'521);
  }
  on_ranks(
      2,
      +[](Net* net, Big* frames) -> Task<> {
        if (net->rank() == 0) {
          co_await net->send(1, 0, frames->sent);
        } else {
          net->register_memory(frames->received);
          EXPECT_EQ(co_await net->recv(0, 0, frames->received), frames->received.size());
        }
      },
      &big);
  EXPECT_TRUE(big.sent == big.received);
}

TEST_P(NetContract, SendsRunAFewFramesAheadOfTheReceiver) {
  std::atomic<std::size_t> sent{0};
  on_ranks(
      2,
      +[](Net* net, std::atomic<std::size_t>* ended) -> Task<> {
        std::byte frame[8] = {};
        if (net->rank() == 0) {
          co_await net->send(1, 0, frame);  // ends although its receiver waits for the next one
          co_await net->send(1, 1, frame);
          for (std::size_t i = 0; i < kWindowsMax * 4; ++i) {
            co_await net->send(1, 0, frame);
            ++*ended;
          }
        } else {
          co_await net->recv(0, 1, frame);
          co_await net->recv(0, 0, frame);
          for (std::size_t i = 0; i < kWindowsMax * 4; ++i) {
            if (i % kWindowsMax == 0) {
              co_await sleep_for(20ms);
            }
            EXPECT_LE(*ended, i + kWindowsMax);
            co_await net->recv(0, 0, frame);
          }
        }
      },
      &sent);
  EXPECT_EQ(sent, kWindowsMax * 4);
}

TEST_P(NetContract, AStoppedReceiveTakesNoFrameAndTooLongFramesAreSaid) {
  on_ranks(
      2, +[](Net* net, Nothing* /*shared*/) -> Task<> {
        std::byte into[4] = {};
        if (net->rank() == 1) {
          StopSource stop;
          co_await with_scope(
              [](Scope& scope, Net* n, StopSource* source) -> Task<> {
                scope.spawn(
                    "stopped",
                    [](Net* of, StopToken token) -> Task<> {
                      std::byte room[4];
                      EXPECT_THAT(co_await outcome_of([&] { return of->recv(0, 0, room, token); }),
                                  Throws<Stopped>());
                    },
                    n, source->token());
                co_await sleep_for(1ms);
                source->request_stop();
              },
              net, &stop);
          co_await net->send(0, 0, into);  // now send
          EXPECT_EQ(co_await net->recv(0, 0, into), 1U);
          EXPECT_EQ(into[0], std::byte{9});
          EXPECT_THAT(co_await outcome_of([&] { return net->recv(0, 0, into); }),
                      ThrowsError(HasSubstr("a frame of 5 bytes came, there is room for 4")));
          EXPECT_THAT(co_await outcome_of([&] { return net->recv(0, 0, into); }),
                      ThrowsError(HasSubstr("a frame of 100000 bytes came, there is room for 4")));
          EXPECT_EQ(co_await net->recv(0, 0, into), 2U);
        } else {
          std::vector<std::byte> frame(100'000, std::byte{9});
          co_await net->recv(1, 0, into);
          co_await net->send(1, 0, std::span(frame).first(1));
          co_await net->send(1, 0, std::span(frame).first(5));
          co_await net->send(1, 0, frame);
          co_await net->send(1, 0, std::span(frame).first(2));
        }
      });
}

TEST_P(NetContract, AStoppedSendThatWaitsLeavesNoFrame) {
  on_ranks(
      2, +[](Net* net, Nothing* /*shared*/) -> Task<> {
        std::uint32_t number = 0;
        const auto frame = std::as_writable_bytes(std::span(&number, 1));
        if (net->rank() == 0) {
          StopSource stop;
          std::uint32_t sent = 0;
          co_await with_scope(
              [](Scope& scope, Net* n, StopSource* source, std::uint32_t* count) -> Task<> {
                scope.spawn(
                    "sends",
                    [](Net* of, StopToken token, std::uint32_t* ended) -> Task<> {
                      try {
                        for (;;) {
                          co_await of->send(1, 0, std::as_bytes(std::span(ended, 1)), token);
                          ++*ended;
                        }
                      } catch (const Stopped&) {
                      }
                    },
                    n, source->token(), count);
                co_await sleep_for(20ms);
                source->request_stop();
              },
              net, &stop, &sent);
          EXPECT_LT(sent, kWindowsMax);
          co_await net->send(1, 1, std::as_bytes(std::span(&sent, 1)));
          number = 1'000'000;
          co_await net->send(1, 0, frame);
        } else {
          co_await net->recv(0, 1, frame);
          const std::uint32_t sent = number;
          for (std::uint32_t i = 0; i < sent; ++i) {
            co_await net->recv(0, 0, frame);
            EXPECT_EQ(number, i);
          }
          co_await net->recv(0, 0, frame);
          EXPECT_EQ(number, 1'000'000U);
        }
      });
}

// Goes on until the peer is lost.
Task<> expect_lost(Net* net, std::uint32_t peer, std::uint32_t channel, bool sends,
                   std::uint32_t failed_rank) {
  std::vector<std::byte> frame(std::size_t{1} << 20);
  const auto go_on = [](Net* n, std::uint32_t to, std::uint32_t on, bool out,
                        std::span<std::byte> bytes) -> Task<> {
    for (;;) {
      if (out) {
        co_await n->send(to, on, bytes);
      } else {
        co_await n->recv(to, on, bytes);
      }
    }
  };
  const auto outcome = co_await outcome_of([&] { return go_on(net, peer, channel, sends, frame); });
  EXPECT_THAT(outcome, Throws<PeerLost>(Property(&PeerLost::rank, failed_rank)));
}

// Rank 1 gives up because of rank 3, while all wait for all: in receives, and in sends of frames
// that no rank receives.
template <std::uint32_t kFailed>
Task<> rank_1_gives_up(Net* net, Nothing* /*shared*/) {
  for (int round = 0; round < 2; ++round) {
    co_await with_scope(
        [](Scope& scope, Net* n, bool aborts) -> Task<> {
          for (std::uint32_t peer = 0; peer < n->world(); ++peer) {
            if (peer != n->rank()) {
              scope.spawn("receive", &expect_lost, n, peer, 0U, false, kFailed);
              scope.spawn("send", &expect_lost, n, peer, 1U, true, kFailed);
            }
          }
          co_await sleep_for(5ms);
          if (aborts) {
            n->abort(kFailed);
          }
        },
        net, round == 0 && net->rank() == 1);
  }
}

TEST_P(NetContract, AbortNamesTheFailedRankEverywhereAndForever) {
  on_ranks(4, &rank_1_gives_up<3>);
}

TEST_P(NetContract, AbortMayNotKnowWhichRankFailed) { on_ranks(4, &rank_1_gives_up<kUnknownRank>); }

Task<> send_heartbeats_and_wait(Net* net, Nothing* /*shared*/) {
  const std::uint32_t peer = 1 - net->rank();
  constexpr std::uint32_t kHeartbeats = kWindowsMax * PeerHeartbeats::kPlaces;
  for (std::uint32_t i = 0; i < kHeartbeats; ++i) {
    net->send_heartbeat(peer, i % PeerHeartbeats::kPlaces,
                        static_cast<std::uint16_t>(100 * net->rank() + i));
  }
  net->send_heartbeat(peer, 3, PeerHeartbeats::kWordsMax - 1);
  while (net->heartbeats_of(peer).count < kHeartbeats + 1) {
    co_await sleep_for(1ms);
  }
  // The last word of each place is there, and no frame was in the way of it or is now.
  const PeerHeartbeats received = net->heartbeats_of(peer);
  for (std::uint32_t place = 0; place < 3; ++place) {
    EXPECT_EQ(received.words[place], 100 * peer + kHeartbeats - PeerHeartbeats::kPlaces + place);
  }
  EXPECT_EQ(received.words[3], PeerHeartbeats::kWordsMax - 1);
  co_await exchange_frames(net, nullptr);
  EXPECT_EQ(net->heartbeats_of(peer).count, kHeartbeats + 1);
  constexpr std::uint32_t kDone = 9;
  if (net->rank() == 1) {
    co_await net->send(0, kDone, {});
    co_return;
  }
  EXPECT_EQ(co_await net->recv(1, kDone, {}), 0U);
  net->abort(0);
  net->send_heartbeat(peer, 0, 1);  // goes nowhere
}

TEST_P(NetContract, AHeartbeatTakesNoCreditAndBringsItsWord) {
  on_ranks(2, &send_heartbeats_and_wait);
}

}  // namespace
}  // namespace tandem
