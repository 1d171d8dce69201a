// tests/model/checker_state.hpp — the model checker's state: the tree of choices, and one
// execution's threads and memory.
//
// checker.cpp goes through the tree; memory.cpp has the operations on memory. Internal.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tests/model/checker.hpp"
#include "tests/model/fiber.hpp"
#include "tests/model/memory.hpp"

namespace tandem::model {

constexpr int kSetup = kMostThreads;  // the thread of setup and of at_end

struct Clock {
  std::array<std::uint32_t, kMostThreads + 1> at{};
  void join(const Clock& other) {
    for (std::size_t i = 0; i < at.size(); ++i) {
      at[i] = std::max(at[i], other.at[i]);
    }
  }
};

struct Event {
  int thread;
  std::uint32_t time;
  bool before(const Clock& clock) const {
    return time <= clock.at[static_cast<std::size_t>(thread)];
  }
};

namespace detail {

struct Location {
  struct Store {
    std::uint64_t value;
    Clock sync;  // joined into an acquire that sees this store
    Event event;
    std::uint64_t step;
  };
  struct Load {
    std::size_t store;
    Event event;
  };
  int number;
  bool alive = true;
  std::vector<Store> stores{};  // the modification order
  std::vector<Load> loads{};
  std::array<std::size_t, kMostThreads + 1> seen{};
  std::array<bool, kMostThreads + 1> saw_old{};
  std::vector<int> waiters{};
};

struct Shadow {
  Event write{kSetup, 0};
  Clock reads{};
};

}  // namespace detail

using detail::Location;
using detail::Shadow;

struct Thread {
  Fiber fiber;
  std::function<void()> body;
  Clock clock;
  std::uint64_t last_step = 0;
  const Location* next_location = nullptr;  // its next operation's
  bool next_writes = false;
  bool blocked = false;
  bool paused = false;  // blocked until next_location changes
  bool finished = true;
};

// One choice of the execution: who goes on (a set of threads), or which store a load sees (a
// count).
struct Choice {
  bool of_thread;
  unsigned options;  // bits, or how many
  unsigned asleep;   // bits
  unsigned explored;
  int chosen;
};

struct Step {
  int thread;
  const char* what;
  int location;
  std::uint64_t value;
};

class Checker {
 public:
  Result explore(const std::function<void(Execution&)>& setup, std::uint64_t most);

  void add_thread(std::function<void()> body);
  void add_end(std::function<void()> body) { at_end_ = std::move(body); }
  void fail(const std::string& what);

  Location* new_location(std::uint64_t value);
  void end_location(Location& location);
  Shadow* new_shadow();
  std::uint64_t load(Location& location, std::memory_order order);
  void store(Location& location, std::uint64_t value, std::memory_order order);
  std::uint64_t read_modify_write(Location& location, std::memory_order success,
                                  std::memory_order failure, detail::Change change, void* argument);
  void futex_wait(Location& location, std::uint64_t seen);
  void futex_wake(Location& location);
  void pause();
  void plain_read(Shadow& shadow);
  void plain_write(Shadow& shadow);

 private:
  void run_once(const std::function<void(Execution&)>& setup);
  static void thread_main();
  bool next_branch();
  bool on_thread() const { return current_ != kSetup; }
  Clock& clock() { return on_thread() ? threads_[current_].clock : setup_clock_; }
  std::uint32_t& time() { return clock().at[static_cast<std::size_t>(current_)]; }
  Event now() { return {current_, time()}; }
  void point(Location& location, bool writes);
  void end_step();
  void go_on_with_someone();
  int choose_thread();
  int choose_value(int count);
  void leave_execution();
  void learn(const Location& location, std::size_t index, std::memory_order order);
  void append(Location& location, std::uint64_t value, std::memory_order order, bool continues);
  void note(const char* what, const Location& location, std::uint64_t value) {
    steps_.push_back({current_, what, location.number, value});
  }
  std::string print_steps() const;

  std::unique_ptr<Fiber> main_ = Fiber::of_this_thread();
  std::array<Thread, kMostThreads> threads_;
  int thread_count_ = 0;
  int current_ = kSetup;
  bool starting_ = false;
  bool redundant_ = false;
  Clock setup_clock_;
  std::function<void()> at_end_;
  std::deque<Location> locations_;
  std::deque<Shadow> shadows_;
  std::vector<Choice> choices_;
  std::size_t depth_ = 0;
  std::uint64_t step_ = 0;
  unsigned asleep_ = 0;
  std::vector<Step> steps_;
  Result result_;
};

extern Checker* g_checker;

}  // namespace tandem::model
