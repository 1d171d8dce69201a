// actors/collectives/shm/shm_sync.hpp — waits for ranks of this host, and notices ranks that died.
//
// A wait polls counters in shared memory while the loop is awake (it spins if that pays). Before
// the loop sleeps, the rank publishes that it sleeps; the awaited peer then sends a byte through
// their socket when it makes progress.
// Failure: a socket that closes without a goodbye, a peer that aborted, one that left while it is
// still needed, a wait over its deadline, ranks at different operations. The first failure is
// permanent: every wait ends with PeerLost, and the peers receive failed_rank and the cause, so
// that they name that rank and not this one. A peer's shared words are copied once, and the copy is
// checked.
// Time: twice per heartbeat period, at a tick, a rank advances its heartbeat, publishes which ranks
// it awaits, reports once if an awaited peer is stopped (its heartbeat stands still and the kernel
// reports the process as stopped), and checks its deadlines. No deadline counts time in which this
// rank was stopped or its host slept; each tick reads the clock once. A deadline names the rank at
// the end of the waits: the awaited peer may wait for another one, and that for one of another host
// (awaited.hpp). If that rank is on another host, its own host, which knows more about it, may name
// it first within kDeadlineGrace. The waits of groups are followed, too, and so are those of the
// run if this object belongs to a group (group_waits.hpp).
// Thread rule: the loop's thread.
// Cancel rule: a wait lasts until its condition holds or the ShmSync has failed (fail()).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <asio/posix/stream_descriptor.hpp>
#include <sys/types.h>

#include "actors/collectives/awaited.hpp"
#include "actors/collectives/group_waits.hpp"
#include "actors/collectives/shm/shm_bootstrap.hpp"
#include "actors/collectives/shm/shm_control.hpp"
#include "runtime/awake_time.hpp"
#include "runtime/event.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/io/net.hpp"
#include "runtime/poller.hpp"
#include "runtime/task.hpp"

namespace tandem {

/// Returns the operation in words: "reduce-scatter 812".
[[nodiscard]] std::string describe(const ShmHeader& header);

class ShmSync final : private Poller {
 public:
  struct Options {
    std::uint32_t rank = 0;
    std::uint32_t first_rank = 0;                  // number of rank 0 among all ranks
    std::uint32_t all_ranks = 0;                   // of all hosts; 0: there is one
    std::uint32_t outside_ranks = 0;               // numbers after these that failures may name
    std::shared_ptr<RunWaits> run_waits{};         // of all ranks; null: there are no groups
    std::shared_ptr<GroupWaits> group_waits{};     // of a group; null: this is no group's
    Duration timeout = std::chrono::seconds(600);  // of each wait
    Duration heartbeat = std::chrono::seconds(5);  // at most an eighth of the timeout
  };

  /// `control` lies at the beginning of this rank's arena, whose mapping is its own entry in
  /// `peers`, without a socket.
  ShmSync(EventLoop& loop, ShmControl& control, std::vector<ShmPeer> peers, Options options);
  /// Says goodbye to the peers. No wait may be under way.
  ~ShmSync();
  ShmSync(const ShmSync&) = delete;
  ShmSync& operator=(const ShmSync&) = delete;

  [[nodiscard]] std::uint32_t rank() const noexcept { return options_.rank; }
  [[nodiscard]] std::uint32_t world() const noexcept {
    return static_cast<std::uint32_t>(peers_.size());
  }
  /// Returns a rank's number among all ranks, by which failures name it.
  [[nodiscard]] std::uint32_t name_of(std::uint32_t rank) const noexcept {
    return options_.first_rank + rank;
  }
  [[nodiscard]] ShmControl& own() noexcept { return control_; }
  [[nodiscard]] const ShmControl& of(std::uint32_t peer) const noexcept {
    return *reinterpret_cast<const ShmControl*>(peers_[peer].memory->data());
  }
  [[nodiscard]] const std::byte* memory_of(std::uint32_t peer) const noexcept {
    return peers_[peer].memory->data();
  }
  [[nodiscard]] std::size_t memory_bytes_of(std::uint32_t peer) const noexcept {
    return peers_[peer].memory->size_bytes();
  }

  /// Begins the channel's next operation: publishes `header`, waits until all ranks have begun
  /// theirs, and compares.
  Task<> arrive(std::size_t channel, ShmHeader header);
  /// Returns the number of the channel's operation under way. Its header and payload lie at index
  /// number % 2.
  [[nodiscard]] std::uint64_t sequence(std::size_t channel) const noexcept {
    return channels_[channel].sequence;
  }
  /// Returns a peer's header, as it was when the ranks' headers were compared.
  [[nodiscard]] const ShmHeader& header_of(std::uint32_t peer, std::size_t channel) const noexcept {
    return channels_[channel].of_peers[peer];
  }
  /// Ends the channel's operation because `peer` announced an operand outside of its arena.
  [[noreturn]] void refuse_operand(std::size_t channel, std::uint32_t peer);

  /// Ends the channel's operation.
  void finish(std::size_t channel) noexcept;

  /// Sets this rank's counter and wakes the peers that sleep.
  void publish(std::size_t channel, std::size_t counter, std::uint64_t value) noexcept;
  /// Waits until the counter of every peer has reached `value`. One wait per channel at a time.
  Task<> all_reach(std::size_t channel, std::size_t counter, std::uint64_t value);

  /// Fails the synchronisation, here and at all peers, because of `failed_rank`, a number among all
  /// ranks. The first cause counts.
  void fail(std::uint32_t failed_rank, const std::string& cause) noexcept;
  [[nodiscard]] bool is_broken() const noexcept { return broken_.has_value(); }
  struct Broken {
    std::uint32_t failed_rank;
    std::string cause;
  };
  [[nodiscard]] const std::optional<Broken>& broken() const noexcept { return broken_; }

  /// Sets a function that is called at each tick (empty: none). It returns the ranks that this rank
  /// has awaited for `at_least` outside of this object; they are published together with its own
  /// waits.
  void ask_for_waits(std::function<Awaited(Duration at_least)> waits) {
    other_waits_ = std::move(waits);
  }
  /// These two implement HostWaits.
  void say_awaited(std::uint32_t rank, Awaited awaited) noexcept;
  [[nodiscard]] Awaited awaited(std::uint32_t rank) const noexcept;

  /// From this call on, peers that die or abort are noticed even while no wait is under way.
  void watch_sockets();
  /// Returns whether the peer has left or its process has ended.
  [[nodiscard]] bool has_ended(std::uint32_t peer) const noexcept { return peers_[peer].ended; }

 private:
  struct Peer {
    std::unique_ptr<asio::posix::stream_descriptor> socket;
    std::shared_ptr<ShmMapping> memory;
    std::uint64_t notified = 0;  // its last sleep that this rank ended (ShmControl::asleep)
    bool ended = false;
    pid_t process = 0;  // 0: unknown
    // Seen at the last ticks:
    std::uint64_t heartbeats = 0;
    TimePoint moved;           // when the heartbeat last advanced
    bool is_silent = false;    // no heartbeat for kSilentAfter periods
    char state = 0;            // of a stopped process, the letter that the kernel shows; else 0
    bool is_reported = false;  // a line has reported that it is stopped
  };
  struct Channel {
    ShmHeader header;                 // of the operation under way
    std::vector<ShmHeader> of_peers;  // theirs, by rank
    std::uint64_t sequence = 0;
    // The wait:
    bool waiting = false;
    std::size_t counter = 0;
    std::uint64_t value = 0;
    std::uint32_t next_peer = 0;  // peers before this one have reached the value
    TimePoint since;
    Event done;
  };
  struct Timer : TimerOp {
    explicit Timer(ShmSync& owner) noexcept;
    ShmSync& sync;
  };

  bool poll() noexcept override;
  bool poll_before_sleep() noexcept override;
  bool has_reached(Channel& channel) noexcept;
  bool end_waits() noexcept;
  [[nodiscard]] std::uint64_t awaited_peers() const noexcept;
  void notify(Peer& peer) noexcept;

  void watch(std::uint32_t peer);
  void on_readable(std::uint32_t peer) noexcept;
  void look_at_peers() noexcept;
  void detect_exits() noexcept;
  void tick();
  void arm_timer();
  // The steps of one tick:
  void say_own_waits(TimePoint now) noexcept;
  void check_heartbeats(TimePoint now);
  void check_run();
  void check_deadlines(TimePoint now);
  void fail_overdue(const Channel& channel, TimePoint now);
  [[nodiscard]] static std::string condition_of(const Peer& peer, TimePoint now);
  [[nodiscard]] bool is_here(std::uint32_t name) const noexcept {
    return name - options_.first_rank < world();
  }
  /// Returns the rank's number in the run, for readers outside of the group.
  [[nodiscard]] std::uint32_t in_run(std::uint32_t rank) const noexcept {
    return options_.group_waits ? options_.group_waits->in_run(name_of(rank)) : name_of(rank);
  }
  void compare_headers(Channel& channel, std::size_t index);
  [[nodiscard]] PeerLost lost(const Channel& channel) const;

  EventLoop& loop_;
  ShmControl& control_;
  Options options_;
  std::vector<Peer> peers_;  // by rank; of this rank: its own memory
  std::array<Channel, ShmControl::kChannels> channels_;
  std::optional<Broken> broken_;
  std::uint64_t sleeps_ = 0;
  bool asleep_ = false;
  bool watching_ = false;
  Awaited on_the_net_;  // this rank's waits that say_awaited() was given
  std::function<Awaited(Duration at_least)> other_waits_;
  Timer timer_{*this};
  AwakeTime awake_;
  std::shared_ptr<ShmSync*> self_;  // shared with the reactor's handlers; null after destruction
};

}  // namespace tandem
