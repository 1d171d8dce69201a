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
          [](void* owner) noexcept { static_cast<UcxBackend*>(owner)->progress(); }, this),
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
  // Messages that a rank sent before it left can still be received.
  if (peer.failed_rank && (sends || channel.arrived.empty())) {
    op.failed_rank = *peer.failed_rank;
    end(op, NetOp::End::kPeerLost);
  } else if (sends) {
    channel.sends.push_back(&op);
    start_sends(peer, channel);
  } else if (!channel.arrived.empty()) {
    take_arrived(peer, channel, op);
  } else {
    post_receive(peer, channel, op);
  }
  settle();
}

bool UcxBackend::cancel(NetOp& op) noexcept {
  UcxChannel& channel = channel_of(peers_[op.request.peer], op);
  bool cancelled = std::erase(channel.sends, &op) > 0;
  const auto is_op = [&](const UcxPosted& posted) { return posted.op == &op; };
  if (const auto place = std::ranges::find_if(channel.posted, is_op);
      place != channel.posted.end()) {
    cancelled = withdraw(*place);
    if (cancelled) {
      channel.posted.erase(place);
    }
  }
  waited_for_ -= cancelled ? 1 : 0;
  return cancelled;
}

// ---- turns

// Ends once an operation has: who awaits it may post the receive of what comes next.
bool UcxBackend::progress() noexcept {
  const std::uint64_t before = ended_;
  for (int turns = 0; turns < kTurns && ended_ == before && worker_.progress(); ++turns) {
    ++moves_;
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
  if (!may_spin_ || waited_for_ == 0 || thread::spare_cpus() < 1) {
    return false;
  }
  if (skip_ > 0) {
    --skip_;
    return false;
  }
  TimePoint now = Clock::real().now();
  TimePoint yields_at = now + kYieldEvery;
  for (TimePoint until = now + kSpinMost; now < until && thread::spare_cpus() >= 1;) {
    const std::uint64_t moves = moves_;
    for (int looks = 0; looks < kLooks; ++looks) {
      if (progress()) {
        skip_after_miss_ = 1;
        return true;
      }
    }
    loop_.reactor().restart();
    loop_.reactor().poll();
    if (loop_.has_ready_ops()) {
      skip_after_miss_ = 1;
      return true;
    }
    now = Clock::real().now();
    if (now >= yields_at) {
      sched_yield();
      now = Clock::real().now();
      yields_at = now + kYieldEvery;
    }
    if (moves_ != moves) {
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
  if (progress() || spin_for_frames()) {
    return true;
  }
  wake_.arm();
  if (worker_.arm()) {
    return false;
  }
  progress();
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

void UcxBackend::send_heartbeat(std::uint32_t number, std::size_t place, std::uint16_t word) {
  UcxPeer& peer = peers_[number];
  if (peer.is_talking() && !peer.has_failed && !peer.was_told) {
    say(peer, Kind::kHeartbeat, UcxTag::heartbeat_value(place, word));
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
      break;
    case Kind::kCredit:
      arrive_credit(peer, tag.value);
      break;
    case Kind::kHeartbeat:
      ++peer.heartbeats.count;
      peer.heartbeats.words[tag.value / PeerHeartbeats::kWordsMax] =
          static_cast<std::uint16_t>(tag.value % PeerHeartbeats::kWordsMax);
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
      break_all(tag.value + 1 == UcxTag::kValuesMax ? kUnknownRank : tag.value);
      break;
  }
}

void UcxBackend::arrive_credit(UcxPeer& peer, std::uint32_t number) noexcept {
  UcxChannel& channel = peer.channel(number, options_.window_frames);
  channel.credits = std::min(channel.credits + options_.window_frames / 2, options_.window_frames);
  start_sends(peer, channel);
}

void UcxBackend::take_arrived(UcxPeer& peer, UcxChannel& channel, NetOp& op) noexcept {
  const UcxMessage message = channel.arrived.front();
  channel.arrived.pop_front();
  op.moved = message.bytes;
  if (message.bytes > op.request.bytes) {
    worker_.drop(message.handle);
    end(op, NetOp::End::kTooLong);
  } else {
    hold(worker_.receive(
             message.handle, {op.request.into, message.bytes},
             [](void* request, ucs_status_t status, const ucp_tag_recv_info_t* /*info*/,
                void* user) { on_moved(*static_cast<UcxBackend*>(user), request, status); },
             this),
         op);
  }
  count_taken(peer, op.request.channel);
}

void UcxBackend::post_receive(UcxPeer& peer, UcxChannel& channel, NetOp& op) noexcept {
  const UcxTag tag{.key = options_.run_key,
                   .sender = peer.rank,
                   .kind = Kind::kFrame,
                   .value = op.request.channel};
  ucp_tag_recv_info_t info{};
  const ucs_status_ptr_t request = worker_.receive_next(
      tag.packed(), {op.request.into, op.request.bytes}, info, &UcxBackend::on_received, this);
  if (UCS_PTR_IS_PTR(request)) {
    hold(request, op);
    channel.posted.push_back({.op = &op, .request = request});
  } else {
    end_received(op, UCS_PTR_STATUS(request), info.length);
  }
}

void UcxBackend::on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                             void* net) noexcept {
  auto& self = *static_cast<UcxBackend*>(net);
  NetOp& op = self.release(request);
  if (!self.withdrawing_) {
    self.end_received(op, status, info->length);
  }
}

void UcxBackend::end_received(NetOp& op, ucs_status_t status, std::size_t bytes) noexcept {
  UcxPeer& peer = peers_[op.request.peer];
  std::erase_if(channel_of(peer, op).posted,
                [&](const UcxPosted& posted) { return posted.op == &op; });
  if (status == UCS_ERR_CANCELED && !peer.has_failed) {
    end(op, NetOp::End::kStopped);  // withdrawn, and hardware that matches tags took its time
    return;
  }
  if (status != UCS_OK && status != UCS_ERR_MESSAGE_TRUNCATED) {
    end_moved(op, status);
    return;
  }
  op.moved = bytes;
  end(op, status == UCS_OK ? NetOp::End::kDone : NetOp::End::kTooLong);
  count_taken(peer, op.request.channel);
}

void UcxBackend::count_taken(UcxPeer& peer, std::uint32_t number) noexcept {
  UcxChannel& channel = peer.channel(number, options_.window_frames);
  if (++channel.taken == options_.window_frames / 2 && !peer.was_told) {
    channel.taken = 0;
    say(peer, Kind::kCredit, number);
  }
}

// False: a frame moves into its buffer already, and UCX will call back.
bool UcxBackend::withdraw(const UcxPosted& posted) noexcept {
  const std::uint32_t before = under_way_;
  withdrawing_ = true;
  worker_.cancel(posted.request);
  withdrawing_ = false;
  return under_way_ < before;
}

}  // namespace tandem::detail
