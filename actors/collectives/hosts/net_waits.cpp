#include "actors/collectives/hosts/net_waits.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace tandem {
namespace {

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

NetWaits::NetWaits(HostWaits& local, Net& net, Options options, Fail fail)
    : local_(local),
      net_(net),
      options_(std::move(options)),
      fail_(std::move(fail)),
      awake_(std::min(options_.heartbeat, options_.timeout / 8) / 2, TimePoint()) {
  options_.heartbeat = std::min(options_.heartbeat, options_.timeout / 8);
  for (std::uint32_t rank = local.rank(); rank < net.world(); rank += local.world()) {
    if (rank != net.rank()) {
      peers_.push_back({.rank = rank, .moved = {}, .last = {}});
    }
  }
}

NetWaits::~NetWaits() {
  TANDEM_CHECK(under_way_.empty(), "waits end before what they are of");
  if (loop_ != nullptr) {
    loop_->take_back(timer_);
  }
}

void NetWaits::start(EventLoop& loop) {
  if (loop_ == nullptr) {
    loop_ = &loop;
    (void)awake_.slept_since(loop_->now());
    put_off({}, loop_->now());
    tick();
  }
}

void NetWaits::begin(Wait& wait) {
  start(EventLoop::current());
  wait.since_ = loop_->now();
  under_way_.push_back(&wait);
}

void NetWaits::tick() noexcept {
  const TimePoint now = loop_->now();
  if (const Duration slept = awake_.slept_since(now); slept > Duration::zero()) {
    put_off(slept, now);
  }
  loop_->arm(timer_, now + options_.heartbeat / 2);
  listen(now);
  speak(now);
  judge(now);
}

// The others may have slept, too.
void NetWaits::put_off(Duration slept, TimePoint now) noexcept {
  for (Wait* const wait : under_way_) {
    wait->since_ = std::min(wait->since_ + slept, now);
  }
  for (Peer& peer : peers_) {
    peer.moved = now;
  }
}

void NetWaits::listen(TimePoint now) noexcept {
  for (Peer& peer : peers_) {
    const PeerHeartbeats received = net_.heartbeats_of(peer.rank);
    if (received.count != peer.heartbeats) {
      peer.heartbeats = received.count;
      peer.moved = now;
    }
    Awaited waits(received.words);
    waits.set_silent(now - peer.moved > Awaited::kSilentAfter * options_.heartbeat);
    if (waits.packed() != std::exchange(peer.last, waits).packed()) {
      local_.say_awaited(peer.rank, waits);
    }
  }
}

// The first word is sent always, as the heartbeat; the others are sent if they changed.
void NetWaits::speak(TimePoint now) {
  Awaited on_the_net = options_.other_waits ? options_.other_waits(options_.heartbeat) : Awaited();
  for (const Wait* const wait : under_way_) {
    if (now - wait->since_ >= options_.heartbeat) {
      on_the_net.add(wait->peer_);
    }
  }
  local_.say_awaited(net_.rank(), on_the_net);
  const Awaited all = local_.awaited(net_.rank());
  for (std::size_t place = 0; place < Awaited::kPlaces; ++place) {
    if (place == 0 || all.word(place) != said_.word(place)) {
      for (const Peer& peer : peers_) {
        net_.send_heartbeat(peer.rank, place, all.word(place));
      }
    }
  }
  said_ = all;
}

void NetWaits::judge(TimePoint now) {
  if (options_.group_waits) {
    if (const auto failure = options_.group_waits->failure()) {
      fail_(failure->rank, failure->why);
      return;
    }
  }
  if (under_way_.empty() || now - under_way_.front()->since_ < options_.timeout) {
    return;
  }
  const Wait& wait = *under_way_.front();
  if (is_cut_off()) {
    fail_(net_.rank(), cut_off());
    return;
  }
  const EndOfWaits end = end_of(wait.peer_);
  const bool others_know = end.why != EndOfWaits::Why::kCircle && local_.world() > 1 &&
                           !is_silent_host(host_of(end.rank));
  if (others_know && now - wait.since_ < options_.timeout + kDeadlineGrace) {
    return;
  }
  fail_(end.rank, describe(wait, end));
}

EndOfWaits NetWaits::end_of(std::uint32_t awaited) const {
  if (options_.group_waits) {
    return options_.group_waits->end_of(net_.rank(), awaited);
  }
  return end_of_waits(net_.rank(), awaited, net_.world(),
                      [this](std::uint32_t rank) { return local_.awaited(rank); });
}

NetWaits::Failed NetWaits::failed_behind(std::uint32_t awaited) const {
  if (is_cut_off()) {
    return {net_.rank(), cut_off()};
  }
  const EndOfWaits end = end_of(awaited);
  return {end.rank, condition_of(end)};
}

std::string NetWaits::cut_off() const {
  return fmt::format(
      "rank {}{} hears nothing from any other host within {:.3g} s: its host's link stalls, or is "
      "cut",
      net_.rank(), name_of_host(host_of(net_.rank())), seconds(options_.timeout));
}

std::string NetWaits::describe(const Wait& wait, const EndOfWaits& end) const {
  const char* what = wait.what_ == For::kFrame ? "sent" : "took from";
  return fmt::format(
      "rank {} {} rank {} nothing within {:.3g} s{}; {}", wait.peer_, what, net_.rank(),
      seconds(options_.timeout),
      end.rank == wait.peer_ ? "" : fmt::format(", and waits for rank {} in the end", end.rank),
      condition_of(end));
}

std::string NetWaits::condition_of(const EndOfWaits& end) const {
  const std::uint32_t host = host_of(end.rank);
  switch (end.why) {
    case EndOfWaits::Why::kIsSilent:
      if (host != host_of(net_.rank()) && is_silent_host(host)) {
        return fmt::format(
            "no heartbeat arrives from {}{}: it is stopped or hangs, or its link stalls",
            local_.world() > 1 ? "its host" : "it", name_of_host(host));
      }
      return fmt::format("rank {} gives no sign of life: it is stopped or hangs", end.rank);
    case EndOfWaits::Why::kCircle:
      return fmt::format("the link between its host{} and rank {}'s{} passes nothing on",
                         name_of_host(host), net_.rank(), name_of_host(host_of(net_.rank())));
    case EndOfWaits::Why::kWaitsForNone:
      break;
  }
  return fmt::format(
      "rank {} lives, waits for no rank and does not take part: it hangs, or is slow", end.rank);
}

std::string NetWaits::name_of_host(std::uint32_t host) const {
  return host < options_.host_names.size() ? fmt::format(" ({})", options_.host_names[host]) : "";
}

// A group's rank sends heartbeats only while it takes part.
bool NetWaits::is_silent(std::uint32_t rank) const {
  return (options_.group_waits ? options_.group_waits->of(rank) : local_.awaited(rank)).is_silent();
}

// A rank outside of a group is on none of its hosts.
bool NetWaits::is_silent_host(std::uint32_t host) const {
  for (std::uint32_t local = 0; local < local_.world(); ++local) {
    const std::uint32_t rank = host * local_.world() + local;
    if (rank == net_.rank() || rank >= net_.world() || !is_silent(rank)) {
      return false;
    }
  }
  return true;
}

// Each of two hosts would have to say it of itself.
bool NetWaits::is_cut_off() const {
  const std::uint32_t hosts = net_.world() / local_.world();
  for (std::uint32_t host = 0; host < hosts; ++host) {
    if (host != host_of(net_.rank()) && !is_silent_host(host)) {
      return false;
    }
  }
  return hosts > 2;
}

}  // namespace tandem
