// runtime/sim/sim_world.hpp — N ranks in one thread, in virtual time, from one seed: the same seed
// is the same execution.
//
// Each rank has its own EventLoop, so ranks act on each other through the same code as threads do.
// run() picks, again and again, one rank that has something to do, lets it run a few operations and
// charges it virtual time; when no rank has anything to do, the clock jumps to the next event. The
// world acts on the ranks (deliveries, completions of disks, devices and pools, deaths) by events
// on its agenda: after(). The seed draws all that may differ between two real executions: which
// rank goes on, how long everything takes, and which of two simultaneous events comes first. An
// order that is promised (a loop's queue, a channel) is kept. Ranks wait as threads do
// (expected_wait.hpp), in virtual time and at no cost: they sleep, spin and sleep again, so a post
// to a sleeping rank has an effect only if it wakes the rank. The world checks a rank only when its
// time has come, when it is woken, and after an event for it, so that a step costs the same with
// hundreds of ranks.
// Thread rule: everything on the thread that made it, and no loop runs on it. The objects that an
// event refers to must live until the event is due or the world is gone. Teardown: end the ranks'
// scopes in the world, then destroy them, then the world.
//
//   SimWorld world({.seed = 7, .ranks = 4});
//   Scope scope(world.loop(0));   scope.spawn("main", &rank_main, ...);
//   SimWorld::End end = world.run([&] { return scope.running() == 0; });
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/clock.hpp"
#include "runtime/detail/wake_tap.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/expected_wait.hpp"
#include "runtime/sim/sim_log.hpp"
#include "runtime/util/random.hpp"

namespace tandem {

class SimWorld : private detail::WakeTap {
 public:
  struct Options {
    std::uint64_t seed = 0;
    std::uint32_t ranks = 1;
    Duration limit = std::chrono::hours(1);    // of virtual time; the watchdog of run()
    std::uint64_t max_operations = 5'000'000;  // the same for loops that never rest
  };

  enum class End {
    kDone,
    kStuck,   // not done, and nothing will ever happen again
    kTimeUp,  // not done within Options::limit or max_operations
  };

  explicit SimWorld(Options options);
  ~SimWorld();
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  /// Runs the world until done() returns true (asked between steps).
  End run(const std::function<bool()>& done);

  [[nodiscard]] std::uint32_t ranks() const noexcept {
    return static_cast<std::uint32_t>(ranks_.size());
  }
  [[nodiscard]] EventLoop& loop(std::uint32_t rank) noexcept { return ranks_[rank]->loop; }
  [[nodiscard]] TimePoint now() const noexcept { return clock_.now(); }
  [[nodiscard]] Duration elapsed() const noexcept { return now().time_since_epoch(); }
  /// The world's random numbers; other users fork() theirs from it.
  [[nodiscard]] Random& random() noexcept { return random_; }
  [[nodiscard]] SimLog& log() noexcept { return log_; }
  void note(const char* what, std::uint32_t rank, std::uint64_t a = 0, std::uint64_t b = 0) {
    log_.add({elapsed().count(), what, rank, a, b});
  }

  /// Calls `event` for `rank` after `delay` of virtual time (with the rank's loop not running). To
  /// the loops of other ranks the event may do only what other threads may. The events of a dead
  /// rank wait.
  void after(Duration delay, std::uint32_t rank, std::function<void()> event);

  // ---- what a rank may suffer
  /// Makes the rank's operations take `factor` times as long from now on.
  void slow_down(std::uint32_t rank, double factor) noexcept;
  /// Stops stepping the rank for `duration`.
  void pause(std::uint32_t rank, Duration duration) noexcept;
  /// Kills the rank: it is not stepped any more, and its events wait.
  void kill(std::uint32_t rank);
  [[nodiscard]] bool alive(std::uint32_t rank) const noexcept { return ranks_[rank]->alive; }
  /// Returns the number of the rank's turns so far; in each it runs a few operations.
  [[nodiscard]] std::uint64_t turns(std::uint32_t rank) const noexcept {
    return ranks_[rank]->turns;
  }
  /// Calls `event` once, before the rank's turn number `turn` (from 0), so that a test can act at
  /// each point of an execution.
  void before_turn(std::uint32_t rank, std::uint64_t turn, std::function<void()> event);
  /// Has `listener` called with each rank that dies.
  void on_death(std::function<void(std::uint32_t)> listener);
  /// Gives a dead rank time again, so that its tasks can end and its memory be freed; called after
  /// the survivors have ended.
  void bury(std::uint32_t rank);

 private:
  struct Rank {
    Rank(std::uint32_t number, Clock& clock);
    std::uint32_t index;
    EventLoop loop;
    bool alive = true;
    Duration operation_time{1000};
    TimePoint busy_until;
    std::uint64_t turns = 0;
    std::uint64_t event_turn = UINT64_MAX;
    std::function<void()> event;  // before that turn
    // Its wait, while it has nothing to do:
    ExpectedWait expected{Spin::kAuto};
    ExpectedWait::Plan plan;  // what is left of the wait
    bool waits = false;
    // How run() finds it:
    bool is_ready = false;    // in ready_
    bool is_touched = false;  // in touched_
    TimePoint next_turn_at = TimePoint::max();

    [[nodiscard]] bool spins() const noexcept {
      return waits && plan.sleep_until_ns == 0 && plan.spin_until_ns != 0;
    }
  };
  struct Event {
    TimePoint time;
    std::uint64_t tie;  // drawn: simultaneous events come in any order
    std::uint32_t rank;
    std::function<void()> call;
    bool operator<(const Event& other) const noexcept {  // for a heap with the earliest on top
      return time != other.time ? time > other.time : tie > other.tie;
    }
  };
  struct Look {  // stale if it is not the rank's next one
    TimePoint time;
    Rank* rank;
    bool operator<(const Look& other) const noexcept {  // likewise
      return time != other.time ? time > other.time : rank->index > other.rank->index;
    }
  };

  void woken(EventLoop& loop) noexcept override;
  void touch(Rank& rank) noexcept;
  void look_at_ranks();
  void look_at(Rank& rank);
  [[nodiscard]] TimePoint earliest_turn();
  void require_none_missed() const;
  void go_on_waiting(Rank& rank);
  static void end_wait(Rank& rank, TimePoint now);
  void call_due_events();
  [[nodiscard]] Rank& take_ready_rank();
  void step(Rank& rank);

  Options options_;
  ManualClock clock_{ManualClock::Idle::kWait};
  Random random_;
  SimLog log_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unordered_map<const EventLoop*, Rank*> rank_of_;
  std::vector<Rank*> ready_;     // have something to do
  std::vector<Rank*> touched_;   // may have
  std::vector<Rank*> spinning_;  // look by themselves: no post wakes them
  std::vector<Look> looks_;      // a heap
  std::vector<Event> agenda_;    // a heap
  std::vector<Event> of_dead_;   // due, but their rank is dead
  std::vector<std::function<void(std::uint32_t)>> death_listeners_;
  std::uint64_t operations_ = 0;
};

}  // namespace tandem
