#include "actors/collectives/shm/shm_sync.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <asio/bind_allocator.hpp>
#include <sys/socket.h>

#include "runtime/io/recycling_allocator.hpp"
#include "runtime/system/owned_descriptor.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

const char* name_of(ShmKind kind) noexcept {
  switch (kind) {
    case ShmKind::kAllGather:
      return "all-gather";
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

/// The cause in one line, of at most the control block's bytes.
std::string cause_of(const ShmControl& control) {
  std::string cause(control.cause.begin(), std::ranges::find(control.cause, 0));
  std::ranges::replace_if(
      cause, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }, ' ');
  return cause;
}

bool send_byte(int socket) noexcept {
  const char byte = 0;
  return ::send(socket, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
}

}  // namespace

std::string describe(const ShmHeader& header) {
  return fmt::format("{} {}", name_of(header.kind), header.number);
}

ShmSync::Timer::Timer(ShmSync& owner) noexcept
    : TimerOp([](Op& op) noexcept { static_cast<Timer&>(op).sync.tick(); }), sync(owner) {}

ShmSync::ShmSync(EventLoop& loop, ShmControl& control, std::vector<ShmPeer> peers, Options options)
    : loop_(loop),
      control_(control),
      options_(options),
      awake_(std::min(options.heartbeat, options.timeout / 8) / 2, loop.now()),
      self_(std::make_shared<ShmSync*>(this)) {
  options_.heartbeat = std::min(options_.heartbeat, options_.timeout / 8);
  const std::size_t ranks = std::max<std::size_t>(options_.all_ranks, peers.size());
  TANDEM_CHECK_LE(ranks, ShmControl::kRanksMax, "more ranks than can be known");
  for (Channel& channel : channels_) {
    channel.of_peers.resize(peers.size());
  }
  for (ShmPeer& peer : peers) {
    Peer& made = peers_.emplace_back();
    made.memory = std::move(peer.memory);
    made.moved = loop.now();
    if (peer.socket.get() >= 0) {
      made.process = peer_of(peer.socket.get()).value_or(SocketPeer()).process;
      made.socket =
          std::make_unique<asio::posix::stream_descriptor>(loop.reactor(), peer.socket.release());
    }
  }
  arm_timer();
}

ShmSync::~ShmSync() {
  for (const Channel& channel : channels_) {
    TANDEM_CHECK(!channel.waiting, "a collective outlives its back end");
  }
  *self_ = nullptr;
  loop_.take_back(timer_);
  if (!broken_) {
    control_.state.store(ShmState::kLeft);  // before the sockets end
  }
}

Task<> ShmSync::arrive(std::size_t channel_index, ShmHeader header) {
  Channel& channel = channels_[channel_index];
  channel.header = header;
  if (broken_) {
    throw lost(channel);  // and the peers must not count this rank as arrived
  }
  ShmChannel& own = control_.channels[channel_index];
  own.headers[channel.sequence % 2] = header;
  publish(channel_index, ShmChannel::kArrived, channel.sequence + 1);
  co_await all_reach(channel_index, ShmChannel::kArrived, channel.sequence + 1);
  compare_headers(channel, channel_index);
}

void ShmSync::finish(std::size_t channel) noexcept { ++channels_[channel].sequence; }

void ShmSync::compare_headers(Channel& channel, std::size_t index) {
  for (std::uint32_t peer = 0; peer < world(); ++peer) {
    if (peer == rank()) {
      continue;
    }
    ShmHeader& other = channel.of_peers[peer];
    other = of(peer).channels[index].headers[channel.sequence % 2];
    if (!other.agrees_with(channel.header)) {
      fail(name_of(peer),
           fmt::format("rank {} is at {} where rank {} is at {}", name_of(peer),
                       describe_fully(other), name_of(rank()), describe_fully(channel.header)));
      throw lost(channel);
    }
  }
}

void ShmSync::refuse_operand(std::size_t channel_index, std::uint32_t peer) {
  const Channel& channel = channels_[channel_index];
  fail(name_of(peer),
       fmt::format("rank {} gives {} at offset {} of {} bytes of its memory", name_of(peer),
                   describe_fully(channel.of_peers[peer]), channel.of_peers[peer].offset,
                   peers_[peer].memory->size_bytes()));
  throw lost(channel);
}

void ShmSync::publish(std::size_t channel, std::size_t counter, std::uint64_t value) noexcept {
  // seq_cst here and at peers that go to sleep: either they see the counter, or this sees them
  // asleep.
  control_.channels[channel].counters[counter].value.store(value);
  for (std::uint32_t peer = 0; peer < world(); ++peer) {
    if (peer != rank()) {
      notify(peers_[peer]);
    }
  }
}

void ShmSync::notify(Peer& peer) noexcept {
  const auto& control = *reinterpret_cast<const ShmControl*>(peer.memory->data());
  const std::uint64_t sleep = control.asleep.load();
  const bool awaits_us = (sleep & 0xffff) == rank() + 1 || (sleep >> 16 & 0xffff) == rank() + 1;
  if (awaits_us && sleep != peer.notified) {
    peer.notified = sleep;
    // Cannot be sent: it is gone, or has unread bytes enough to wake it.
    (void)send_byte(peer.socket->native_handle());
  }
}

Task<> ShmSync::all_reach(std::size_t channel_index, std::size_t counter, std::uint64_t value) {
  Channel& channel = channels_[channel_index];
  TANDEM_CHECK(!channel.waiting, "one operation of a channel is under way at a time");
  channel.counter = counter;
  channel.value = value;
  channel.next_peer = 0;
  if (has_reached(channel)) {
    co_return;
  }
  watch_sockets();
  channel.since = loop_.now();
  channel.waiting = true;
  channel.done.reset();
  detect_exits();
  if (!broken_) {
    loop_.add_poller(*this);
    co_await channel.done;
  }
  channel.waiting = false;
  if (!has_reached(channel)) {
    throw lost(channel);
  }
}

PeerLost ShmSync::lost(const Channel& channel) const {
  return {fmt::format("[collectives] {}; {} cannot end on rank {}", broken_->cause,
                      describe(channel.header), name_of(rank())),
          broken_->failed_rank};
}

bool ShmSync::has_reached(Channel& channel) noexcept {
  const auto index = static_cast<std::size_t>(&channel - channels_.data());
  for (; channel.next_peer < world(); ++channel.next_peer) {
    if (channel.next_peer != rank() &&
        of(channel.next_peer).channels[index].counters[channel.counter].value.load() <
            channel.value) {
      return false;
    }
  }
  return true;
}

bool ShmSync::poll() noexcept {
  if (asleep_) {
    asleep_ = false;
    control_.asleep.store(0);
  }
  return end_waits();
}

// Publishes which ranks it awaits, then checks their counters again: a peer that reached its value
// before it could read that is found here.
bool ShmSync::poll_before_sleep() noexcept {
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

// One peer per channel, plus one; only these need to be notified.
std::uint64_t ShmSync::awaited_peers() const noexcept {
  std::uint64_t peers = 0;
  for (const Channel& channel : channels_) {
    peers = peers << 16 | (channel.waiting && !channel.done.is_set() ? channel.next_peer + 1 : 0);
  }
  return peers;
}

bool ShmSync::end_waits() noexcept {
  bool any = false;
  bool left = false;
  for (Channel& channel : channels_) {
    if (channel.waiting && !channel.done.is_set() && (broken_ || has_reached(channel))) {
      channel.done.set();
      any = true;
    }
    left = left || (channel.waiting && !channel.done.is_set());
  }
  if (!left) {
    loop_.remove_poller(*this);
  }
  return any;
}

// ---- what the sockets tell ----
void ShmSync::watch_sockets() {
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

void ShmSync::watch(std::uint32_t peer) {
  peers_[peer].socket->async_wait(
      asio::posix::stream_descriptor::wait_read,
      asio::bind_allocator(detail::RecyclingAllocator<void>(),
                           [self = self_, peer](const asio::error_code& error) {
                             if (*self != nullptr && !error) {
                               (*self)->on_readable(peer);
                             }
                           }));
}

void ShmSync::on_readable(std::uint32_t peer) noexcept {
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

// A cause that a peer published before its end counts first, because the peer knows better which
// rank is at fault.
void ShmSync::look_at_peers() noexcept {
  for (std::uint32_t peer = 0; peer < world() && !broken_; ++peer) {
    const ShmControl& control = of(peer);
    if (peer != rank() && control.state.load() == ShmState::kAborted) {
      const std::uint32_t failed_rank = control.failed_rank;
      const std::uint32_t names = std::max(options_.all_ranks, world()) + options_.outside_ranks;
      const bool is_name = failed_rank < names || failed_rank == kUnknownRank;
      fail(is_name ? failed_rank : name_of(peer), cause_of(control));
    }
  }
  for (std::uint32_t peer = 0; peer < world() && !broken_; ++peer) {
    if (peers_[peer].ended && of(peer).state.load() == ShmState::kRuns) {
      fail(name_of(peer), fmt::format("rank {} is gone: its process ended", name_of(peer)));
    }
  }
  detect_exits();
}

void ShmSync::detect_exits() noexcept {
  for (Channel& channel : channels_) {
    if (channel.waiting && !broken_ && !has_reached(channel) && peers_[channel.next_peer].ended) {
      const std::uint32_t left = name_of(channel.next_peer);
      fail(left, fmt::format("rank {} has left", left));
    }
  }
}

void ShmSync::fail(std::uint32_t failed_rank, const std::string& cause) noexcept {
  if (broken_) {
    return;
  }
  broken_ = Broken{failed_rank, cause};
  if (options_.run_waits) {
    options_.run_waits->fail(failed_rank, cause);
  }
  control_.failed_rank = failed_rank;
  const std::size_t length = std::min(cause.size(), control_.cause.size() - 1);
  std::copy_n(cause.begin(), length, control_.cause.begin());
  control_.cause[length] = 0;
  control_.state.store(ShmState::kAborted);
  for (std::uint32_t peer = 0; peer < world(); ++peer) {
    if (peer != rank()) {
      (void)send_byte(peers_[peer].socket->native_handle());
    }
  }
  poll();
}

}  // namespace tandem
