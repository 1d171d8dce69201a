// ShmSync's ticks, twice per heartbeat period: advances this rank's heartbeat, publishes which
// ranks it awaits, and checks the others' heartbeats and its own deadlines.
#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "actors/collectives/shm/shm_sync.hpp"
#include "runtime/system/process_state.hpp"

namespace tandem {
namespace {

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

void ShmSync::arm_timer() { loop_.arm(timer_, loop_.now() + options_.heartbeat / 2); }

void ShmSync::tick() {
  control_.heartbeats.store(control_.heartbeats.load(std::memory_order_relaxed) + 1,
                            std::memory_order_relaxed);
  const TimePoint now = loop_.now();
  if (const Duration slept = awake_.slept_since(now); slept > Duration::zero()) {
    for (Channel& channel : channels_) {
      channel.since = std::min(channel.since + slept, now);
    }
    for (Peer& peer : peers_) {
      peer.moved = now;  // it may have slept, too
    }
  }
  say_own_waits(now);
  check_heartbeats(now);
  check_run();
  check_deadlines(now);
  if (!broken_) {
    arm_timer();
  }
}

// A wait shorter than a heartbeat period does not count as holding up a rank.
void ShmSync::say_own_waits(TimePoint now) noexcept {
  Awaited all = on_the_net_;
  for (const Channel& channel : channels_) {
    if (channel.waiting && !channel.done.is_set() && now - channel.since >= options_.heartbeat) {
      all.add(name_of(channel.next_peer));
    }
  }
  if (other_waits_) {
    all.add(other_waits_(options_.heartbeat));
  }
  if (options_.run_waits) {
    all.add(options_.run_waits->in_groups());
  }
  if (options_.group_waits) {
    options_.group_waits->say(all);
  }
  control_.awaited[name_of(rank())].store(all.packed(), std::memory_order_relaxed);
}

// The back end of all ranks stores the waits that groups use, and checks the sockets, so that it
// notices a rank that aborted also while no operation waits here. A group's back end checks for
// failures of the run.
void ShmSync::check_run() {
  if (options_.run_waits) {
    watch_sockets();
    std::vector<Awaited> known(std::max(options_.all_ranks, world()));
    for (std::uint32_t name = 0; name < known.size(); ++name) {
      known[name] = awaited(name);
    }
    options_.run_waits->know(known);
  }
  if (options_.group_waits) {
    if (const auto failure = options_.group_waits->failure()) {
      fail(failure->rank, failure->why);
    }
  }
}

void ShmSync::say_awaited(std::uint32_t name, Awaited awaited) noexcept {
  if (name == name_of(rank())) {
    on_the_net_ = awaited;
    say_own_waits(loop_.now());
  } else if (name < ShmControl::kRanksMax) {
    control_.awaited[name].store(awaited.packed(), std::memory_order_relaxed);
  }
}

// For a rank of another host, the rank of this host with its local rank has the newest information.
Awaited ShmSync::awaited(std::uint32_t name) const noexcept {
  if (name >= ShmControl::kRanksMax) {
    return {};
  }
  const std::uint32_t local = is_here(name) ? name - options_.first_rank : name % world();
  Awaited said(of(local).awaited[name].load(std::memory_order_relaxed));
  if (is_here(name)) {
    said.set_silent(peers_[local].is_silent);
  }
  return said;
}

// The first tick may find a heartbeat from before the stop, the second finds none, the third is
// certain: with two ticks per heartbeat period that is one and a half periods. The heartbeat of a
// rank that computes outside of its loop stands still as well: only the kernel knows that a process
// is stopped.
void ShmSync::check_heartbeats(TimePoint now) {
  for (std::uint32_t rank = 0; rank < world(); ++rank) {
    Peer& peer = peers_[rank];
    if (rank == options_.rank || peer.ended) {
      continue;
    }
    const std::uint64_t heartbeats = of(rank).heartbeats.load(std::memory_order_relaxed);
    if (heartbeats != peer.heartbeats) {
      if (std::exchange(peer.is_reported, false)) {
        fmt::print(stderr, "[collectives] rank {} runs again after {:.1f} s\n", in_run(rank),
                   seconds(now - peer.moved));
      }
      peer.heartbeats = heartbeats;
      peer.moved = now;
      peer.state = 0;
      peer.is_silent = false;
      continue;
    }
    peer.is_silent = now - peer.moved > Awaited::kSilentAfter * options_.heartbeat;
    const char before = std::exchange(peer.state, stopped_state(peer.process));
    const bool is_awaited = std::ranges::any_of(channels_, [&](const Channel& channel) {
      return channel.waiting && channel.next_peer == rank;
    });
    if (before != 0 && peer.state != 0 && is_awaited && !std::exchange(peer.is_reported, true)) {
      fmt::print(
          stderr,
          "[collectives] rank {} is {}; rank {} waits for it until the deadline of {:.3g} s\n",
          in_run(rank), condition_of(peer, now), in_run(options_.rank), seconds(options_.timeout));
    }
  }
}

std::string ShmSync::condition_of(const Peer& peer, TimePoint now) {
  return fmt::format("stopped (state {} of process {}) since {:.1f} s", peer.state, peer.process,
                     seconds(now - peer.moved));
}

void ShmSync::check_deadlines(TimePoint now) {
  for (Channel& channel : channels_) {
    if (channel.waiting && !channel.done.is_set() && !has_reached(channel) &&
        now - channel.since >= options_.timeout) {
      fail_overdue(channel, now);
    }
  }
}

void ShmSync::fail_overdue(const Channel& channel, TimePoint now) {
  const std::uint32_t awaited_peer = name_of(channel.next_peer);
  const EndOfWaits end =
      options_.group_waits
          ? options_.group_waits->end_of(name_of(rank()), awaited_peer)
          : end_of_waits(name_of(rank()), awaited_peer, std::max(options_.all_ranks, world()),
                         [this](std::uint32_t name) { return awaited(name); });
  // A circle goes through other hosts: the rank that waits for one of them names it.
  const bool others_know =
      !is_here(end.rank) || (end.why == EndOfWaits::Why::kCircle && options_.all_ranks > world());
  if (others_know && now - channel.since < options_.timeout + kDeadlineGrace) {
    return;
  }
  std::string more;
  if (end.rank != awaited_peer) {
    more = fmt::format("; it waits for rank {} in the end", end.rank);
  }
  if (is_here(end.rank)) {
    const Peer& peer = peers_[end.rank - options_.first_rank];
    more += peer.state != 0 ? fmt::format("{} is {}", more.empty() ? "; it" : ", which",
                                          condition_of(peer, now))
                            : "";
  } else if (end.why == EndOfWaits::Why::kIsSilent) {
    more += ", from which no heartbeat arrives";
  }
  fail(end.rank, fmt::format("rank {} did not {} {} within {:.3g} s{}", awaited_peer,
                             channel.counter == ShmChannel::kArrived ? "arrive at" : "get through",
                             describe(channel.header), seconds(options_.timeout), more));
}

}  // namespace tandem
