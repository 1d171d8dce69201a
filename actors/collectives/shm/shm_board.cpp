#include "actors/collectives/shm/shm_board.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <asio/bind_allocator.hpp>
#include <sys/socket.h>

#include "runtime/io/recycling_allocator.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

const char* name_of(ShmKind kind) noexcept {
  switch (kind) {
    case ShmKind::kAllGather:
      return "all-gather";
    case ShmKind::kBroadcast:
      return "broadcast";
    case ShmKind::kAllToAll:
      return "all-to-all";
    case ShmKind::kReduceScatter:
      return "reduce-scatter";
    case ShmKind::kAllReduce:
      return "all-reduce";
    case ShmKind::kExchange:
      return "exchange";
    case ShmKind::kNone:
      break;
  }
  return "nothing";
}

std::string describe_fully(const ShmHeader& header) {
  return fmt::format("{} of {} bytes", describe(header), header.bytes);
}

bool send_byte(int socket) noexcept {
  const char byte = 0;
  return ::send(socket, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
}

}  // namespace

std::string describe(const ShmHeader& header) {
  return fmt::format("{} {}", name_of(header.kind), header.number);
}

ShmBoard::Timer::Timer(ShmBoard& owner) noexcept
    : TimerOp([](Op& op) noexcept {
        auto& self = static_cast<Timer&>(op);
        self.under_way = false;
        self.board.look_at_deadlines();
      }),
      board(owner) {}

ShmBoard::ShmBoard(EventLoop& loop, ShmControl& control, std::vector<ShmPeer> peers,
                   Options options)
    : loop_(loop), control_(control), options_(options), self_(std::make_shared<ShmBoard*>(this)) {
  for (ShmPeer& peer : peers) {
    Peer& made = peers_.emplace_back();
    made.memory = std::move(peer.memory);
    if (peer.socket.get() >= 0) {
      made.socket =
          std::make_unique<asio::posix::stream_descriptor>(loop.reactor(), peer.socket.release());
    }
  }
}

ShmBoard::~ShmBoard() {
  for (const Lane& lane : lanes_) {
    TANDEM_CHECK(!lane.waiting, "a collective outlives its back end");
  }
  *self_ = nullptr;
  loop_.disarm(timer_);
  if (!broken_) {
    control_.state.store(ShmState::kLeft);  // before the sockets end
  }
}

Task<> ShmBoard::arrive(std::size_t lane_index, ShmHeader header) {
  Lane& lane = lanes_[lane_index];
  lane.header = header;
  ShmLane& own = control_.lanes[lane_index];
  own.headers[lane.sequence % 2] = header;
  publish(lane_index, ShmLane::kArrived, lane.sequence + 1);
  co_await all_reach(lane_index, ShmLane::kArrived, lane.sequence + 1);
  compare_headers(lane, lane_index);
}

void ShmBoard::finish(std::size_t lane) noexcept { ++lanes_[lane].sequence; }

void ShmBoard::compare_headers(const Lane& lane, std::size_t index) {
  for (std::uint32_t peer = 0; peer < world(); ++peer) {
    if (peer == rank()) {
      continue;
    }
    const ShmHeader& other = header_of(peer, index);
    if (!other.agrees_with(lane.header)) {
      give_up(peer, fmt::format("rank {} is at {} where rank {} is at {}", peer,
                                describe_fully(other), rank(), describe_fully(lane.header)));
      throw lost(lane);
    }
  }
}

void ShmBoard::publish(std::size_t lane, std::size_t counter, std::uint64_t value) noexcept {
  // seq_cst here and at those who go to sleep: either they see the counter, or this sees them
  // asleep.
  control_.lanes[lane].counters[counter].value.store(value);
  for (std::uint32_t peer = 0; peer < world(); ++peer) {
    if (peer != rank()) {
      ring(peers_[peer]);
    }
  }
}

void ShmBoard::ring(Peer& peer) noexcept {
  const auto& control = *reinterpret_cast<const ShmControl*>(peer.memory->data());
  const std::uint64_t sleep = control.asleep.load();
  const bool awaits_us = (sleep & 0xffff) == rank() + 1 || (sleep >> 16 & 0xffff) == rank() + 1;
  if (awaits_us && sleep != peer.rung) {
    peer.rung = sleep;
    // Cannot be sent: it is gone, or has unread bytes enough to wake it.
    (void)send_byte(peer.socket->native_handle());
  }
}

Task<> ShmBoard::all_reach(std::size_t lane_index, std::size_t counter, std::uint64_t value) {
  Lane& lane = lanes_[lane_index];
  TANDEM_CHECK(!lane.waiting, "one operation of a lane is under way at a time");
  lane.counter = counter;
  lane.value = value;
  lane.next_peer = 0;
  if (has_reached(lane)) {
    co_return;
  }
  watch_sockets();
  lane.since = loop_.now();
  lane.waiting = true;
  lane.done.reset();
  look_for_leavers();
  if (!broken_) {
    arm_timer();
    loop_.add_poller(*this);
    co_await lane.done;
  }
  lane.waiting = false;
  if (!has_reached(lane)) {
    throw lost(lane);
  }
}

PeerLost ShmBoard::lost(const Lane& lane) const {
  return {fmt::format("[collectives] {}; {} cannot end on rank {}", broken_->cause,
                      describe(lane.header), rank()),
          broken_->culprit};
}

bool ShmBoard::has_reached(Lane& lane) noexcept {
  const auto index = static_cast<std::size_t>(&lane - lanes_.data());
  for (; lane.next_peer < world(); ++lane.next_peer) {
    if (lane.next_peer != rank() &&
        of(lane.next_peer).lanes[index].counters[lane.counter].value.load() < lane.value) {
      return false;
    }
  }
  return true;
}

bool ShmBoard::poll() noexcept {
  if (asleep_) {
    asleep_ = false;
    control_.asleep.store(0);
  }
  return end_waits();
}

// Says for whom it waits, then looks again: whoever reached its value before it could read that is
// seen here.
bool ShmBoard::poll_before_sleep() noexcept {
  asleep_ = true;
  for (;;) {
    const std::uint64_t awaited = awaited_peers();
    control_.asleep.store(++sleeps_ << 32 | awaited);
    if (end_waits()) {
      poll();
      return true;
    }
    if (awaited_peers() == awaited) {
      return false;
    }
  }
}

// One peer per lane, plus one; only these need to ring.
std::uint64_t ShmBoard::awaited_peers() const noexcept {
  std::uint64_t peers = 0;
  for (const Lane& lane : lanes_) {
    peers = peers << 16 | (lane.waiting && !lane.done.is_set() ? lane.next_peer + 1 : 0);
  }
  return peers;
}

bool ShmBoard::end_waits() noexcept {
  bool any = false;
  bool left = false;
  for (Lane& lane : lanes_) {
    if (lane.waiting && !lane.done.is_set() && (broken_ || has_reached(lane))) {
      lane.done.set();
      any = true;
    }
    left = left || (lane.waiting && !lane.done.is_set());
  }
  if (!left) {
    loop_.remove_poller(*this);
  }
  return any;
}

// ---- what the sockets tell ----
void ShmBoard::watch_sockets() {
  if (watching_) {
    return;
  }
  watching_ = true;
  for (std::uint32_t peer = 0; peer < world(); ++peer) {
    if (peer != rank()) {
      watch(peer);
    }
  }
}

void ShmBoard::watch(std::uint32_t peer) {
  peers_[peer].socket->async_wait(
      asio::posix::stream_descriptor::wait_read,
      asio::bind_allocator(detail::RecyclingAllocator<void>(),
                           [self = self_, peer](const asio::error_code& error) {
                             if (*self != nullptr && !error) {
                               (*self)->hear(peer);
                             }
                           }));
}

void ShmBoard::hear(std::uint32_t peer) noexcept {
  std::array<char, 256> bytes;
  Peer& from = peers_[peer];
  for (;;) {
    const ssize_t got =
        ::recv(from.socket->native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0 || (got < 0 && errno == EINTR)) {
      continue;
    }
    from.ended = got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    break;
  }
  look_at_peers();
  poll();
  if (!from.ended) {
    watch(peer);
  }
}

// What a peer wrote down before its end comes first: it knows better who is at fault.
void ShmBoard::look_at_peers() noexcept {
  for (std::uint32_t peer = 0; peer < world() && !broken_; ++peer) {
    const ShmControl& control = of(peer);
    if (peer != rank() && control.state.load() == ShmState::kGaveUp) {
      give_up(control.culprit, control.cause.data());
    }
  }
  for (std::uint32_t peer = 0; peer < world() && !broken_; ++peer) {
    if (peers_[peer].ended && of(peer).state.load() == ShmState::kRuns) {
      give_up(peer, fmt::format("rank {} is gone: its process ended", peer));
    }
  }
  look_for_leavers();
}

void ShmBoard::look_for_leavers() noexcept {
  for (Lane& lane : lanes_) {
    if (lane.waiting && !broken_ && !has_reached(lane) && peers_[lane.next_peer].ended) {
      give_up(lane.next_peer, fmt::format("rank {} has left", lane.next_peer));
    }
  }
}

void ShmBoard::give_up(std::uint32_t culprit, const std::string& cause) noexcept {
  if (broken_) {
    return;
  }
  broken_ = Broken{culprit, cause};
  control_.culprit = culprit;
  const std::size_t length = std::min(cause.size(), control_.cause.size() - 1);
  std::copy_n(cause.begin(), length, control_.cause.begin());
  control_.cause[length] = 0;
  control_.state.store(ShmState::kGaveUp);
  for (std::uint32_t peer = 0; peer < world(); ++peer) {
    if (peer != rank()) {
      (void)send_byte(peers_[peer].socket->native_handle());
    }
  }
  poll();
}

// ---- deadlines ----
// One timer for all waits; it is left armed when a wait ends, and looks again when it fires.
void ShmBoard::arm_timer() {
  if (!timer_.under_way) {
    timer_.under_way = true;
    loop_.arm(timer_, loop_.now() + options_.timeout);
  }
}

void ShmBoard::look_at_deadlines() {
  TimePoint earliest = TimePoint::max();
  for (Lane& lane : lanes_) {
    if (!lane.waiting || lane.done.is_set() || has_reached(lane)) {
      continue;
    }
    if (loop_.now() - lane.since < options_.timeout) {
      earliest = std::min(earliest, lane.since + options_.timeout);
      continue;
    }
    const double seconds = std::chrono::duration<double>(options_.timeout).count();
    give_up(lane.next_peer,
            fmt::format("rank {} did not {} {} within {:.3g} s", lane.next_peer,
                        lane.counter == ShmLane::kArrived ? "arrive at" : "get through",
                        describe(lane.header), seconds));
    return;
  }
  if (earliest != TimePoint::max()) {
    timer_.under_way = true;
    loop_.arm(timer_, earliest);
  }
}

}  // namespace tandem
