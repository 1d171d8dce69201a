#include "runtime/ucx/ucx_backend.hpp"

#include <algorithm>

#include <sched.h>

#include "runtime/thread.hpp"

namespace tandem::detail {
namespace {
constexpr int kTurns = 16;  // of UCX in one look: frames under way must not hold the loop
// A frame that is due, or its next part, comes within some ten microseconds; to sleep and to be
// woken would take as long again.
constexpr Duration kSpinMost = std::chrono::microseconds(200);
// A thread of this process that was woken on this CPU gets it after that; sooner, another process
// would take it for a whole slice each time.
constexpr Duration kYieldEvery = std::chrono::microseconds(50);
constexpr int kLooks = 8;  // between two looks at the clock and at what else the loop waits for
constexpr std::uint32_t kSkipMost = 64;
}  // namespace

UcxBackend::UcxBackend(EventLoop& loop, const UcxNetOptions& options)
    : loop_(loop),
      options_(options),
      worker_(options.devices),
      wake_(
          loop, worker_.event_descriptor(),
          [](void* owner) noexcept { static_cast<UcxBackend*>(owner)->look(); }, this),
      peers_(options.world) {
  for (std::uint32_t rank = 0; rank < world(); ++rank) {
    peers_[rank].net = this;
    peers_[rank].rank = rank;
  }
}

void UcxBackend::submit(NetOp& op) {
  TANDEM_CHECK(op.request.channel < UcxTag::kValuesMax, "a channel fits the tag");
  UcxPeer& peer = peers_[op.request.peer];
  UcxChannel& channel = channel_of(peer, op);
  const bool sends = op.request.kind == NetOp::Kind::kSend;
  ++waited_for_;
  // What a rank sent before it left can still be received.
  if (peer.failed_rank && (sends || channel.arrived.empty())) {
    op.failed_rank = *peer.failed_rank;
    end(op, NetOp::End::kPeerLost);
  } else if (sends) {
    channel.sends.push_back(&op);
    start_sends(peer, channel);
  } else {
    channel.receives.push_back(&op);
    hand_over(peer, op.request.channel);
  }
  settle();
}

bool UcxBackend::cancel(NetOp& op) noexcept {
  UcxChannel& channel = channel_of(peers_[op.request.peer], op);
  auto& queue = op.request.kind == NetOp::Kind::kSend ? channel.sends : channel.receives;
  const bool cancelled = std::erase(queue, &op) > 0;
  waited_for_ -= cancelled ? 1 : 0;
  return cancelled;
}

// ---- turns

bool UcxBackend::look() noexcept {
  const std::uint64_t before = ended_;
  for (int turns = 0; turns < kTurns && worker_.progress(); ++turns) {
  }
  ucp_tag_recv_info_t info{};
  while (ucp_tag_message_h message = worker_.next_message(info)) {
    arrive(message, info);
  }
  settle();
  return ended_ != before;
}

// While operations wait and a CPU is left for it: looks again for a bounded time after the last
// part that came. True: there is something for the loop.
bool UcxBackend::spin_for_frames() noexcept {
  if (!may_spin_ || waited_for_ == 0 || thread::spare_cpus() < 0) {
    return false;
  }
  if (skip_ > 0) {
    --skip_;
    return false;
  }
  const std::uint64_t before = ended_;
  TimePoint now = Clock::real().now();
  TimePoint yields_at = now + kYieldEvery;
  for (TimePoint until = now + kSpinMost; now < until && thread::spare_cpus() >= 0;) {
    bool moved = false;
    for (int looks = 0; looks < kLooks && ended_ == before; ++looks) {
      moved |= worker_.progress();
      look();
    }
    loop_.reactor().restart();
    loop_.reactor().poll();
    if (ended_ != before || loop_.has_ready_ops()) {
      skip_after_miss_ = 1;
      return true;
    }
    now = Clock::real().now();
    if (now >= yields_at) {
      sched_yield();
      now = Clock::real().now();
      yields_at = now + kYieldEvery;
    }
    if (moved) {
      until = now + kSpinMost;
    }
    if (loop_.next_deadline() <= now) {
      return true;
    }
  }
  skip_ = skip_after_miss_;
  skip_after_miss_ = std::min(kSkipMost, skip_after_miss_ * 2);
  return false;
}

bool UcxBackend::poll_before_sleep() noexcept {
  if (look() || spin_for_frames()) {
    return true;
  }
  wake_.arm();
  if (worker_.arm()) {
    return false;
  }
  look();
  return true;  // there may be more, which the loop's next round finds
}

// ---- what is sent

void UcxBackend::start_sends(UcxPeer& peer, UcxChannel& channel) noexcept {
  while (channel.credits > 0 && !channel.sends.empty() && !peer.has_failed) {
    NetOp& op = *channel.sends.front();
    channel.sends.pop_front();
    --channel.credits;
    send_frame(peer, op);
  }
}

void UcxBackend::send_frame(UcxPeer& peer, NetOp& op) noexcept {
  const UcxTag tag{
      .key = options_.run_key, .sender = rank(), .kind = Kind::kFrame, .value = op.request.channel};
  op.moved = op.request.bytes;
  hold(worker_.send(
           peer.endpoint, {op.request.from, op.request.bytes}, tag.packed(),
           [](void* request, ucs_status_t status, void* user) {
             on_moved(*static_cast<UcxBackend*>(user), request, status);
           },
           this),
       op);
}

void UcxBackend::say(UcxPeer& peer, Kind kind, std::uint32_t value) noexcept {
  const UcxTag tag{.key = options_.run_key, .sender = rank(), .kind = kind, .value = value};
  // Without bytes there is no buffer to wait for; of an endpoint's failure UCX tells by itself.
  static_cast<void>(worker_.send(
      peer.endpoint, {}, tag.packed(),
      [](void* request, ucs_status_t /*status*/, void* /*user*/) { ucx().request_free(request); },
      nullptr));
}

void UcxBackend::say_farewell(UcxPeer& peer, Kind kind, std::uint32_t value) noexcept {
  if (peer.endpoint != nullptr && !peer.was_told) {
    peer.was_told = true;
    say(peer, kind, value);
  }
}

void UcxBackend::beat(std::uint32_t number, std::size_t place, std::uint16_t word) {
  UcxPeer& peer = peers_[number];
  if (peer.is_talking() && !peer.has_failed && !peer.was_told) {
    say(peer, Kind::kBeat, UcxTag::beat_value(place, word));
  }
}

// ---- what comes

void UcxBackend::arrive(ucp_tag_message_h message, const ucp_tag_recv_info_t& info) noexcept {
  const UcxTag tag = UcxTag::unpack(info.sender_tag);
  const bool is_ours = tag.key == options_.run_key && tag.sender < world() && tag.sender != rank();
  if (!is_ours || tag.kind != Kind::kFrame || peers_[tag.sender].said_farewell) {
    worker_.drop(message);
  }
  if (!is_ours || peers_[tag.sender].said_farewell) {
    return;
  }
  UcxPeer& peer = peers_[tag.sender];
  switch (tag.kind) {
    case Kind::kFrame:
      peer.channel(tag.value, options_.window_frames)
          .arrived.push_back({.handle = message, .bytes = info.length});
      hand_over(peer, tag.value);
      break;
    case Kind::kCredit:
      arrive_credit(peer, tag.value);
      break;
    case Kind::kBeat:
      ++peer.heart.beats;
      peer.heart.words[tag.value / NetHeart::kWordsMax] =
          static_cast<std::uint16_t>(tag.value % NetHeart::kWordsMax);
      break;
    case Kind::kHello:
      peer.window = tag.value;
      break;
    case Kind::kBye:
      peer.said_farewell = true;
      unsettled_ = true;
      fail_waiting(peer, peer.rank);
      say_farewell(peer, Kind::kBye, 0);
      break;
    case Kind::kAbort:
      peer.said_farewell = true;
      break_all(tag.value);
      break;
  }
}

void UcxBackend::arrive_credit(UcxPeer& peer, std::uint32_t number) noexcept {
  UcxChannel& channel = peer.channel(number, options_.window_frames);
  channel.credits = std::min(channel.credits + options_.window_frames / 2, options_.window_frames);
  start_sends(peer, channel);
}

void UcxBackend::hand_over(UcxPeer& peer, std::uint32_t number) noexcept {
  UcxChannel& channel = peer.channel(number, options_.window_frames);
  while (!channel.receives.empty() && !channel.arrived.empty()) {
    NetOp& op = *channel.receives.front();
    channel.receives.pop_front();
    const UcxMessage message = channel.arrived.front();
    channel.arrived.pop_front();
    receive_frame(op, message);
    if (++channel.taken == options_.window_frames / 2 && !peer.was_told) {
      channel.taken = 0;
      say(peer, Kind::kCredit, number);
    }
  }
}

void UcxBackend::receive_frame(NetOp& op, const UcxMessage& message) noexcept {
  op.moved = message.bytes;
  if (message.bytes > op.request.bytes) {
    worker_.drop(message.handle);
    end(op, NetOp::End::kTooLong);
    return;
  }
  hold(worker_.receive(
           message.handle, {op.request.into, message.bytes},
           [](void* request, ucs_status_t status, const ucp_tag_recv_info_t* /*info*/, void* user) {
             on_moved(*static_cast<UcxBackend*>(user), request, status);
           },
           this),
       op);
}

}  // namespace tandem::detail
