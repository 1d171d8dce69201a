// actors/collectives/hosts/net_waits.hpp — waits for frames of other hosts: their deadlines, and
// which rank is at fault when one is over.
//
// Twice in each heartbeat a rank tells the ranks with its local rank on the other hosts that it
// lives and whom it waits for, and its own host what it heard of those. So every rank knows of
// every other one, and follows the waits from the one that is overdue to the rank at their end: one
// that waits for no rank, or that gives no sign of life (awaited.hpp).
// A wait is of one frame. The rank at fault is named by its own host first, which knows whether it
// is stopped, unless that takes longer than kDeadlineGrace or nothing is heard of that host. A rank
// that hears nothing from any of several hosts names itself.
// Time: as ShmSync's; a look has one time, and time in which this rank was stopped counts to no
// deadline.
// Waits of other kinds may be said in the same words, and are judged where they are
// (failed_behind()). Those of a group are judged by what is known in the run (group_waits.hpp).
// Thread rule: the loop's thread. It begins with its first wait, or with start().
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
    std::vector<std::string> host_names{};         // by host; empty: not said
    /// For whom this rank waits elsewhere than in a Wait, for at least that long; asked at each
    /// look.
    std::function<Awaited(Duration at_least)> other_waits{};
    std::shared_ptr<GroupWaits> group_waits{};  // null: of all ranks
  };
  using Fail = std::function<void(std::uint32_t failed_rank, const std::string& why)>;
  enum class For : std::uint8_t { kFrame, kTaking };

  /// `fail` is called at each look at which a wait is overdue, and ends it, or where the run has
  /// failed. Both levels outlive this.
  NetWaits(HostWaits& local, Net& net, Options options, Fail fail);
  ~NetWaits();
  NetWaits(const NetWaits&) = delete;
  NetWaits& operator=(const NetWaits&) = delete;

  /// Listens and speaks from now on. While the loop does not run, of its owner.
  void start(EventLoop& loop);

  /// Whether there is no sign of life of the rank.
  [[nodiscard]] bool is_silent(std::uint32_t rank) const;
  /// The rank at fault when this one waits too long for `awaited`.
  struct Failed {
    std::uint32_t rank;
    std::string what;  // is known of it
  };
  [[nodiscard]] Failed failed_behind(std::uint32_t awaited) const;

  /// In the frame of the coroutine that waits for `peer`, of another host.
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
        : TimerOp([](Op& op) noexcept { static_cast<Timer&>(op).waits.look(); }), waits(owner) {}
    NetWaits& waits;
  };
  struct Peer {  // with this local rank on another host
    std::uint32_t rank;
    std::uint64_t beats = 0;
    TimePoint moved;  // when they had
    Awaited last;     // said to the host
  };

  void begin(Wait& wait);
  void look() noexcept;
  // All of one look:
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
  EventLoop* loop_ = nullptr;  // since it began
  Timer timer_{*this};
  AwakeTime awake_;
  std::vector<Wait*> under_way_;  // the oldest first
  std::vector<Peer> peers_;
  Awaited said_;  // to them
};

}  // namespace tandem
