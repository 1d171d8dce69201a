#include "actors/collectives/nccl/net_nccl_peers.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>

#include <fmt/format.h>

#include "runtime/sleep.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

// A peer that no longer receives must not delay the others.
constexpr Duration kNotice = std::chrono::milliseconds(200);
// Aborting the net drops frames that arrived and were not received yet.
constexpr Duration kUntilReceived = std::chrono::milliseconds(30);
constexpr Duration kLinger = std::chrono::seconds(2);
constexpr Duration kLookEvery = std::chrono::microseconds(200);

}  // namespace

NetNcclPeers::NetNcclPeers(EventLoop& loop, HostNcclPeers& host, Net& net, std::uint32_t channel,
                           std::uint32_t outside_ranks)
    : loop_(loop),
      host_(host),
      net_(net),
      channel_(channel),
      outside_ranks_(outside_ranks),
      scope_(loop, Name("nccl peers")) {
  static_assert(std::has_unique_object_representations_v<Turn> &&
                    std::has_unique_object_representations_v<Frame>,
                "no padding that is not set");
  static_assert(offsetof(Frame, content) == Frame::kHead);
  for (std::uint32_t rank = host.rank(); rank < net.world(); rank += host.world()) {
    if (rank != net.rank()) {
      peers_.push_back(std::make_unique<Peer>());
      peers_.back()->rank = rank;
    }
  }
  speaking_ = peers_.size();
  for (const std::unique_ptr<Peer>& peer : peers_) {
    scope_.spawn("tell another host", &NetNcclPeers::speak, this, peer.get());
    scope_.spawn("receive from another host", &NetNcclPeers::listen, this, peer.get());
  }
}

void NetNcclPeers::tell_decisions() noexcept {
  for (const std::unique_ptr<Peer>& peer : peers_) {
    peer->news.set();
  }
}

void NetNcclPeers::has_begun(std::uint64_t turn) noexcept {
  begun_ = turn;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer->rank < host_.world() && begun_ - peer->begun >= kSayEvery) {
      peer->begun_is_due = true;
      peer->news.set();
    }
  }
}

void NetNcclPeers::say_begun() noexcept {
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer->begun < begun_) {
      peer->begun_is_due = true;
      peer->news.set();
    }
  }
}

void NetNcclPeers::announce_failure(std::uint32_t failed_rank, const std::string& cause) noexcept {
  if (failure_) {
    return;
  }
  failure_ = NcclLoss{failed_rank, cause};
  host_.announce_failure(failed_rank, cause);
  for (const std::unique_ptr<Peer>& peer : peers_) {
    peer->news.set();
  }
  if (!leaving_) {
    scope_.spawn("give up", &NetNcclPeers::give_up, this);
  }
}

std::optional<NcclLoss> NetNcclPeers::loss() const noexcept {
  if (failure_) {
    return failure_;
  }
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer->has_left && host_.begun(peer->rank) < begun_) {
      return NcclLoss{peer->rank, fmt::format("rank {} has left", peer->rank)};
    }
  }
  return std::nullopt;
}

Task<> NetNcclPeers::leave() {
  leaving_ = true;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    peer->news.set();
  }
  co_await all_told(kLinger);
  for (const std::unique_ptr<Peer>& peer : peers_) {
    peer->stop.request_stop();
  }
  co_await scope_.empty();
}

Task<> NetNcclPeers::all_told(Duration at_most) {
  for (const TimePoint until = loop_.now() + at_most; speaking_ > 0 && loop_.now() < until;) {
    co_await sleep_for(kLookEvery);
  }
}

// Sends the frame with the cause first, then the abort, which reaches every rank of every host.
Task<> NetNcclPeers::give_up(NetNcclPeers* self) {
  co_await self->all_told(kNotice);
  co_await sleep_for(kUntilReceived);
  self->net_.abort(self->failure_->failed_rank);
}

// ---- what is said ----
Task<> NetNcclPeers::speak(NetNcclPeers* self, Peer* peer) {
  try {
    while (!peer->is_closed && !peer->has_left) {
      peer->news.reset();
      while (self->write_next(*peer)) {
        co_await self->net_.send(peer->rank, self->channel_,
                                 std::as_bytes(std::span(&peer->out, 1)).first(peer->out.bytes()),
                                 peer->stop.token());
      }
      if (!peer->is_closed) {
        co_await peer->news.wait(peer->stop.token());
      }
    }
  } catch (const Stopped&) {  // it has left, or this rank leaves
  } catch (const PeerLost& lost) {
    self->lose(*peer, lost);
  }
  --self->speaking_;
}

bool NetNcclPeers::write_next(Peer& peer) noexcept {
  Frame& frame = peer.out;
  frame.count = 0;
  if (peer.is_closed || peer.has_left) {
    return false;
  }
  if (failure_) {
    frame.kind = Kind::kFailure;
    frame.number = failure_->failed_rank;
    frame.count = static_cast<std::uint32_t>(std::min(failure_->cause.size(), Frame::kBytes));
    std::memcpy(frame.content.data(), failure_->cause.data(), frame.count);
    peer.is_closed = true;
    return true;
  }
  if (net_.rank() == 0) {
    write_decisions(peer);
    if (frame.count > 0) {
      return true;
    }
  }
  if (leaving_ || (peer.begun_is_due && peer.begun < begun_)) {
    frame.kind = leaving_ ? Kind::kLeaves : Kind::kBegun;
    frame.number = begun_;
    peer.begun = begun_;
    peer.begun_is_due = false;
    peer.is_closed = leaving_;
    return true;
  }
  return false;
}

// A decision is overwritten only when every rank has begun its turn, and so has received it.
void NetNcclPeers::write_decisions(Peer& peer) noexcept {
  Frame& frame = peer.out;
  frame.kind = Kind::kDecisions;
  frame.number = peer.decided;
  for (; frame.count < Frame::kTurns; ++frame.count, ++peer.decided) {
    const std::optional<NcclLaunch> launch = host_.decided(peer.decided);
    if (!launch) {
      return;
    }
    const ShmHeader& of = launch->operation;
    const Turn turn{.comm = launch->comm,
                    .kind = static_cast<std::uint32_t>(of.kind),
                    .types = of.types,
                    .number = of.number,
                    .phase = of.phase,
                    .bytes = of.bytes};
    std::memcpy(frame.content.data() + frame.count * sizeof(turn), &turn, sizeof(turn));
  }
}

// ---- frames received ----
Task<> NetNcclPeers::listen(NetNcclPeers* self, Peer* peer) {
  try {
    for (bool more = true; more;) {
      const std::size_t bytes = co_await self->net_.recv(
          peer->rank, self->channel_, std::as_writable_bytes(std::span(&peer->in, 1)),
          peer->stop.token());
      more = self->take(*peer, bytes);
    }
  } catch (const Stopped&) {
  } catch (const PeerLost& lost) {
    self->lose(*peer, lost);
  } catch (const Error& error) {
    self->announce_failure(peer->rank, error.what());
  }
}

bool NetNcclPeers::take(Peer& peer, std::size_t bytes) {
  const Frame& frame = peer.in;
  const std::size_t unit = frame.kind == Kind::kDecisions ? sizeof(Turn) : 1;
  bool fits =
      bytes >= Frame::kHead && frame.count <= Frame::kBytes / unit && bytes == frame.bytes();
  if (fits) {
    switch (frame.kind) {
      case Kind::kDecisions:
        fits = peer.rank == 0 && host_.rank() == 0 && take_decisions(frame);
        break;
      case Kind::kBegun:
      case Kind::kLeaves:
        host_.has_received(peer.rank, std::max(frame.number, host_.begun(peer.rank)));
        peer.has_left = frame.kind == Kind::kLeaves;
        break;
      case Kind::kFailure: {
        std::string cause(reinterpret_cast<const char*>(frame.content.data()), frame.count);
        std::ranges::replace_if(
            cause, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }, ' ');
        announce_failure(
            is_name(frame.number) ? static_cast<std::uint32_t>(frame.number) : kUnknownRank, cause);
        return false;
      }
      default:
        fits = false;
    }
  }
  if (!fits) {
    announce_failure(peer.rank,
                     fmt::format("rank {} sends turns that cannot be; run the same version on all "
                                 "ranks",
                                 peer.rank));
    return false;
  }
  if (peer.has_left) {
    peer.stop.request_stop();  // of what is said to it
  }
  return !peer.has_left;
}

bool NetNcclPeers::take_decisions(const Frame& frame) {
  if (frame.number != handed_on_) {
    return false;
  }
  for (std::uint32_t i = 0; i < frame.count; ++i) {
    Turn turn;
    std::memcpy(&turn, frame.content.data() + i * sizeof(turn), sizeof(turn));
    // The decision that it takes the place of has been read by all ranks of this host.
    if (handed_on_ >= NcclPeers::kMostAhead &&
        host_.behind(handed_on_ - NcclPeers::kMostAhead + 1)) {
      return false;
    }
    host_.decide(handed_on_++, {.comm = turn.comm,
                                .operation = {.kind = static_cast<ShmKind>(turn.kind),
                                              .types = static_cast<std::uint32_t>(turn.types),
                                              .number = turn.number,
                                              .phase = turn.phase,
                                              .bytes = turn.bytes}});
  }
  return true;
}

// The abort of a rank may arrive before the frame that names the failed rank.
void NetNcclPeers::lose(const Peer& peer, const PeerLost& lost) {
  if (leaving_ || (peer.has_left && lost.rank() == peer.rank)) {
    return;
  }
  if (lost.rank() == peer.rank) {
    announce_failure(
        peer.rank,
        fmt::format("rank {} is gone or gave up: its connection ended; see its output", peer.rank));
  } else if (is_name(lost.rank())) {
    announce_failure(lost.rank(), fmt::format("rank {} failed; see its output", lost.rank()));
  } else {
    announce_failure(kUnknownRank, "a rank of another host gave up; see the others' output");
  }
}

}  // namespace tandem
