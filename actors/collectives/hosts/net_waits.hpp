// actors/collectives/hosts/net_waits.hpp — deadlines of waits for frames of other hosts, and the
// search for the rank at fault.
//
// Twice per heartbeat period a rank sends the ranks that it awaits to the ranks with its local rank
// on the other hosts, and publishes to its own host what it receives from them. So every rank knows
// the waits of all ranks. When a wait is overdue, the rank follows these waits to the rank at their
// end, which waits for no rank or is silent (awaited.hpp). A Wait covers one frame. Other hosts let
// the host of the rank at fault name that rank first, because it knows whether the rank is stopped;
// they name it themselves after kDeadlineGrace, or at once if that host is silent. A rank that
// receives nothing from several other hosts names itself.
// Time: as in ShmSync. A tick reads the clock once, and no deadline counts time in which this rank
// was stopped. Other waits can be published in the same words (Options::other_waits); their owner
// finds the rank at fault with failed_behind(). Waits in a group use what the run knows
// (group_waits.hpp).
// Thread rule: the loop's thread. Heartbeats begin with the first wait, or with start().
//
//   const NetWaits::Wait wait(waits, peer, NetWaits::For::kFrame);
//   co_await net.recv(peer, ...);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/collectives/awaited.hpp"
#include "actors/collectives/group_waits.hpp"
#include "actors/collectives/hosts/host_waits.hpp"
#include "runtime/awake_time.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/io/net.hpp"

namespace tandem {

class NetWaits {
 public:
  struct Options {
    Duration timeout = std::chrono::seconds(600);  // of each wait
    Duration heartbeat = std::chrono::seconds(5);  // at most an eighth of the timeout
    std::vector<std::string> host_names{};         // [host]; empty: messages name no hosts
    /// Called at every tick: returns the ranks that this rank has awaited for `at_least`, outside
    /// of Wait objects.
    std::function<Awaited(Duration at_least)> other_waits{};
    std::shared_ptr<GroupWaits> group_waits{};  // null: the net is no group's
  };
  using Fail = std::function<void(std::uint32_t failed_rank, const std::string& why)>;
  enum class For : std::uint8_t { kFrame, kTaking };

  /// `fail` is called at each tick at which a wait is overdue or the run has failed; it must end
  /// the waits. `local` and `net` outlive this object.
  NetWaits(HostWaits& local, Net& net, Options options, Fail fail);
  ~NetWaits();
  NetWaits(const NetWaits&) = delete;
  NetWaits& operator=(const NetWaits&) = delete;

  /// Begins to send and receive heartbeats. While the loop does not run, its owner's thread may
  /// call it.
  void start(EventLoop& loop);

  /// Returns whether the rank is silent (awaited.hpp).
  [[nodiscard]] bool is_silent(std::uint32_t rank) const;
  /// The rank at fault for a wait that takes too long.
  struct Failed {
    std::uint32_t rank;
    std::string what;  // its condition, in words
  };
  [[nodiscard]] Failed failed_behind(std::uint32_t awaited) const;

  /// Registers a wait for `peer`, a rank of another host, for as long as it lives: in the frame of
  /// the waiting coroutine.
  class Wait {
   public:
    Wait(NetWaits& waits, std::uint32_t peer, For what) : waits_(waits), peer_(peer), what_(what) {
      waits_.begin(*this);
    }
    ~Wait() { std::erase(waits_.under_way_, this); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    friend class NetWaits;
    NetWaits& waits_;
    std::uint32_t peer_;
    For what_;
    TimePoint since_;
  };

 private:
  struct Timer : TimerOp {
    explicit Timer(NetWaits& owner) noexcept
        : TimerOp([](Op& op) noexcept { static_cast<Timer&>(op).waits.tick(); }), waits(owner) {}
    NetWaits& waits;
  };
  struct Peer {  // with this local rank on another host
    std::uint32_t rank;
    std::uint64_t heartbeats = 0;
    TimePoint moved;  // when a heartbeat last arrived
    Awaited last;     // its waits, as last published to this host
  };

  void begin(Wait& wait);
  void tick() noexcept;
  // The steps of one tick:
  void put_off(Duration slept, TimePoint now) noexcept;
  void listen(TimePoint now) noexcept;
  void speak(TimePoint now);
  void judge(TimePoint now);
  [[nodiscard]] EndOfWaits end_of(std::uint32_t awaited) const;
  [[nodiscard]] std::string describe(const Wait& wait, const EndOfWaits& end) const;
  [[nodiscard]] std::string condition_of(const EndOfWaits& end) const;

  [[nodiscard]] std::uint32_t host_of(std::uint32_t rank) const noexcept {
    return rank / local_.world();
  }
  [[nodiscard]] std::string name_of_host(std::uint32_t host) const;
  [[nodiscard]] bool is_silent_host(std::uint32_t host) const;
  [[nodiscard]] bool is_cut_off() const;
  [[nodiscard]] std::string cut_off() const;

  HostWaits& local_;
  Net& net_;
  Options options_;
  Fail fail_;
  EventLoop* loop_ = nullptr;  // null: not started
  Timer timer_{*this};
  AwakeTime awake_;
  std::vector<Wait*> under_way_;  // the oldest first
  std::vector<Peer> peers_;
  Awaited said_;  // the waits last sent to the peers
};

}  // namespace tandem
