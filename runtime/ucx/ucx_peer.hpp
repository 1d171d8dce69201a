// runtime/ucx/ucx_peer.hpp — the state of one peer of a rank's UCX net: its endpoint, its channels,
// and the progress of the farewells.
//
// Invariant: a peer with a failed_rank has no operation queued or posted; operations that UCX has
// end when it calls back, at the latest once the endpoint is closed.
// Thread rule: the loop's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "runtime/io/net.hpp"
#include "runtime/ucx/ucx_api.hpp"

namespace tandem::detail {

struct UcxMessage {
  ucp_tag_message_h handle;
  std::size_t bytes;
};

struct UcxPosted {
  NetOp* op;
  void* request;
};

// Frames go from UCX into the buffers of receives that wait for them; those that come before their
// receives are kept.
// Invariant: where frames are kept no receive is posted.
struct UcxChannel {
  explicit UcxChannel(std::uint32_t window) noexcept : credits(window) {}

  std::deque<NetOp*> sends;  // those without a credit
  std::uint32_t credits;
  std::deque<UcxMessage> arrived;  // frames without a receive
  std::deque<UcxPosted> posted;    // receives without a frame, in UCX
  std::uint32_t taken = 0;         // frames since the last credit for the peer
};

class UcxBackend;

struct UcxPeer {
  UcxBackend* net = nullptr;
  std::uint32_t rank = 0;
  ucp_ep_h endpoint = nullptr;
  std::map<std::uint32_t, UcxChannel> channels;
  std::optional<std::uint32_t> failed_rank;
  bool has_failed = false;              // UCX says so, and settle() has not dealt with it yet
  std::optional<std::uint32_t> window;  // the window that its hello named
  bool said_farewell = false;           // it said bye or abort, or its endpoint failed
  bool was_told = false;                // bye or abort was said to it
  PeerHeartbeats heartbeats;

  [[nodiscard]] UcxChannel& channel(std::uint32_t number, std::uint32_t window) {
    return channels.try_emplace(number, window).first->second;
  }
  [[nodiscard]] bool is_talking() const noexcept { return endpoint != nullptr && !said_farewell; }
  [[nodiscard]] bool has_waiting() const noexcept {
    return std::ranges::any_of(channels, [](const auto& one) {
      return !one.second.sends.empty() || !one.second.posted.empty();
    });
  }
};

}  // namespace tandem::detail
