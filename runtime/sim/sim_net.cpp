#include "runtime/sim/sim_net.hpp"

#include <algorithm>
#include <cstring>
#include <ranges>
#include <string_view>

namespace tandem {

class SimNet::Endpoint final : public NetBackend {
 public:
  Endpoint(SimNet& net, std::uint32_t rank) noexcept : net_(net), rank_(rank) {}
  [[nodiscard]] std::uint32_t rank() const noexcept override { return rank_; }
  [[nodiscard]] std::uint32_t world() const noexcept override { return net_.ranks_; }
  void submit(NetOp& op) override { net_.submit(rank_, op); }
  bool cancel(NetOp& op) noexcept override { return net_.cancel(rank_, op); }
  void abort(std::uint32_t failed_rank) override { net_.abort(rank_, failed_rank); }
  void send_heartbeat(std::uint32_t peer, std::size_t place, std::uint16_t word) override {
    net_.send_heartbeat(rank_, peer, place, word);
  }
  [[nodiscard]] PeerHeartbeats heartbeats_of(std::uint32_t peer) const noexcept override {
    return net_.heartbeats_of(rank_, peer);
  }

 private:
  SimNet& net_;
  std::uint32_t rank_;
};

namespace {
std::uint64_t hash_of(const std::vector<std::byte>& frame) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte b : frame) {
    hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100000001b3;
  }
  return hash;
}
}  // namespace

SimNet::SimNet(SimWorld& world, Options options)
    : world_(world),
      options_(options),
      ranks_(options.ranks > 0 ? options.ranks : world.ranks() - options.first),
      random_(world.random().fork("net")),
      lost_(std::size_t{ranks_} * ranks_),
      bytes_sent_(lost_.size()),
      operations_(ranks_),
      cut_at_(ranks_, UINT64_MAX) {
  if (options.ranks > 0) {
    random_ = random_.fork(options.first);
  }
  world_.on_death([this](std::uint32_t dead_in_world) {
    const std::uint32_t dead = dead_in_world - options_.first;
    for (std::uint32_t rank = 0; rank < ranks_ && dead < ranks_; ++rank) {
      if (rank != dead) {
        after(options_.detect_after + Duration(random_.between(0, 1'000'000)), rank,
              [this, rank, dead] { lose(rank, dead, dead); });
      }
    }
  });
}

SimNet::~SimNet() = default;

std::unique_ptr<NetBackend> SimNet::attach(std::uint32_t rank) {
  return std::make_unique<Endpoint>(*this, rank);
}

void SimNet::clog(std::uint32_t from, std::uint32_t to, Duration duration) {
  clogged_until_[{from, to}] = world_.now() + duration;
  world_.note("link is clogged", options_.first + from, to,
              static_cast<std::uint64_t>(duration.count()));
}

std::size_t SimNet::frames_under_way() const noexcept {
  std::size_t count = 0;
  for (const auto& [link, channel] : channels_) {
    count += channel.in_flight;
  }
  return count;
}

std::size_t SimNet::operations_under_way() const noexcept {
  std::size_t count = 0;
  for (const auto& [link, channel] : channels_) {
    count += channel.sends.size() + channel.receives.size();
  }
  return count;
}

void SimNet::submit(std::uint32_t rank, NetOp& op) {
  if (operations_[rank]++ == cut_at_[rank]) {
    cut(rank);
  }
  const NetOp::Request& request = op.request;
  if (const auto failed_rank = lost(rank, request.peer)) {
    op.failed_rank = *failed_rank;
    end(rank, op, NetOp::End::kPeerLost);
    return;
  }
  if (request.kind == NetOp::Kind::kSend) {
    const Link link{rank, request.peer, request.channel};
    channels_[link].sends.push_back(&op);
    start_next(link);
  } else {
    const Link link{request.peer, rank, request.channel};
    channels_[link].receives.push_back(&op);
    hand_over(link);
  }
}

bool SimNet::cancel(std::uint32_t rank, NetOp& op) noexcept {
  const NetOp::Request& request = op.request;
  const bool sends = request.kind == NetOp::Kind::kSend;
  Channel& channel = channels_[sends ? Link{rank, request.peer, request.channel}
                                     : Link{request.peer, rank, request.channel}];
  auto& queue = sends ? channel.sends : channel.receives;
  const auto place = std::ranges::find(queue, &op);
  if (place == queue.end() || (sends && channel.leaving && place == queue.begin())) {
    return false;
  }
  queue.erase(place);
  return true;
}

// The first send in the wait queue begins to leave, if the receiver's window allows.
void SimNet::start_next(const Link& link) {
  Channel& channel = channels_[link];
  if (channel.leaving || channel.sends.empty() || channel.in_flight >= options_.window_frames) {
    return;
  }
  channel.leaving = true;
  const auto [from, to, number] = link;
  const double seconds =
      static_cast<double>(channel.sends.front()->request.bytes) / options_.bytes_per_s;
  const TimePoint ready = std::max(world_.now(), clogged_until_[{from, to}]);
  after(ready - world_.now() + Duration(static_cast<std::int64_t>(seconds * 1e9) + 1), from,
        [this, link] { leave(link); });
}

void SimNet::leave(const Link& link) {
  Channel& channel = channels_[link];
  channel.leaving = false;
  if (channel.sends.empty()) {
    return;  // the net broke meanwhile
  }
  NetOp& op = *channel.sends.front();
  channel.sends.pop_front();
  const auto [from, to, number] = link;
  std::vector<std::byte> frame(op.request.from, op.request.from + op.request.bytes);
  op.moved = op.request.bytes;
  end(from, op, NetOp::End::kDone);
  ++channel.in_flight;
  bytes_sent_[from * ranks_ + to] += frame.size();
  const Duration latency(random_.between(options_.latency.count(), 2 * options_.latency.count()));
  const TimePoint arrival = std::max(world_.now() + latency, channel.last_arrival + Duration(1));
  channel.last_arrival = arrival;
  after(arrival - world_.now(), to,
        [this, link, bytes = std::move(frame)]() mutable { arrive(link, std::move(bytes)); });
  start_next(link);
}

void SimNet::arrive(const Link& link, std::vector<std::byte> frame) {
  const auto [from, to, number] = link;
  Channel& channel = channels_[link];
  if (lost(to, from)) {
    --channel.in_flight;
    return;
  }
  world_.note("frame arrives", options_.first + to, from * 1000 + number, hash_of(frame));
  channel.arrived.push_back(std::move(frame));
  hand_over(link);
}

void SimNet::hand_over(const Link& link) {
  Channel& channel = channels_[link];
  const auto [from, to, number] = link;
  while (!channel.receives.empty() && !channel.arrived.empty()) {
    NetOp& op = *channel.receives.front();
    channel.receives.pop_front();
    const std::vector<std::byte> frame = std::move(channel.arrived.front());
    channel.arrived.pop_front();
    --channel.in_flight;
    op.moved = frame.size();
    const bool fits = frame.size() <= op.request.bytes;
    if (fits && !frame.empty()) {
      std::memcpy(op.request.into, frame.data(), frame.size());
    }
    end(to, op, fits ? NetOp::End::kDone : NetOp::End::kTooLong);
  }
  start_next(link);
}

void SimNet::abort(std::uint32_t rank, std::uint32_t failed_rank) {
  world_.note("aborts its net", options_.first + rank, failed_rank);
  break_all(rank, failed_rank);
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    if (peer != rank) {
      after(Duration(random_.between(options_.latency.count(), 3 * options_.latency.count())), peer,
            [this, peer, failed_rank] { break_all(peer, failed_rank); });
    }
  }
}

// Through the link as frames are, but no window holds it up.
void SimNet::send_heartbeat(std::uint32_t from, std::uint32_t to, std::size_t place,
                            std::uint16_t word) {
  if (lost(from, to)) {
    return;
  }
  const Duration latency(random_.between(options_.latency.count(), 2 * options_.latency.count()));
  TimePoint& last = last_heartbeat_[{from, to}];
  last = std::max(std::max(world_.now(), clogged_until_[{from, to}]) + latency, last + Duration(1));
  after(last - world_.now(), to, [this, from, to, place, word] {
    if (!lost(to, from)) {
      PeerHeartbeats& heartbeats = heartbeats_[{from, to}];
      ++heartbeats.count;
      heartbeats.words[place] = word;
    }
  });
}

PeerHeartbeats SimNet::heartbeats_of(std::uint32_t rank, std::uint32_t peer) const noexcept {
  const auto found = heartbeats_.find({peer, rank});
  return found == heartbeats_.end() ? PeerHeartbeats() : found->second;
}

void SimNet::break_all(std::uint32_t rank, std::uint32_t failed_rank) {
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    if (peer != rank) {
      lose(rank, peer, failed_rank);
    }
  }
}

void SimNet::lose(std::uint32_t rank, std::uint32_t peer, std::uint32_t failed_rank) {
  if (lost(rank, peer)) {
    return;
  }
  lost(rank, peer) = failed_rank;
  world_.note("loses a peer", options_.first + rank, peer, failed_rank);
  const auto fail = [&](std::deque<NetOp*>& ops) {
    for (NetOp* op : std::exchange(ops, {})) {
      op->failed_rank = failed_rank;
      end(rank, *op, NetOp::End::kPeerLost);
    }
  };
  const auto channels_between = [this](std::uint32_t from, std::uint32_t to) {
    return std::ranges::subrange(channels_.lower_bound({from, to, 0}),
                                 channels_.upper_bound({from, to, UINT32_MAX}));
  };
  for (auto& [link, channel] : channels_between(rank, peer)) {
    fail(channel.sends);
  }
  for (auto& [link, channel] : channels_between(peer, rank)) {
    fail(channel.receives);
    channel.in_flight -= channel.arrived.size();
    channel.arrived.clear();
  }
}

void SimNet::end(std::uint32_t rank, NetOp& op, NetOp::End how) {
  op.end = how;
  world_.note(how == NetOp::End::kDone ? "net done" : "net fails", options_.first + rank,
              op.request.peer, op.request.channel);
  world_.loop(options_.first + rank).post_from_any_thread(op.resume);
}

}  // namespace tandem
