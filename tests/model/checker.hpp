// tests/model/checker.hpp — runs a small concurrent program in every way its atomic steps may
// interleave.
//
// Depth-first and stateless: each execution runs the threads (fibers) from the start; before each
// atomic operation the checker chooses who goes on, and for a load also which value it sees. Left
// out is only what another execution covers: orders that differ in steps that commute (different
// locations, or two loads; by sleep sets), and an old value that a load would have found as the
// newest one, had it come earlier (nothing of its thread stood in between).
//
// The parts of C++20's memory model that are modelled:
// - Each location has a modification order, in which its stores are executed: a store never slips
//   in before an earlier one. Loads may see any store that coherence and happens-before allow,
//   however old (store buffering, stale relaxed reads, messages seen without earlier writes).
// - Release, acquire and release sequences through read-modify-writes, by vector clocks. seq_cst is
//   not modelled (nothing here uses it). Read-modify-writes see the newest value;
//   compare_exchange_weak never fails spuriously.
// - Plain memory (Plain<T>): two accesses of which one writes, not ordered by happens-before, are a
//   data race, which is found.
// - A futex: wait and wake are steps; a wake releases the longest waiter. A deadlock, in which all
//   threads are blocked, is found.
// - A use of an atomic after its destruction is found.
// Not modelled: load buffering (a load never sees a later store), spurious wakes, fences, time. A
// thread that has seen an old value of a location sees the newest one at its next load of it, so
// that waiting loops end.
//
//   Result r = explore([](Execution& run) { auto s = std::make_shared<State>();
//                                           run.thread([s] { ... });  run.thread([s] { ... });
//                                           run.at_end([s] { check(s->sum == 2, "the sum"); }); });
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace tandem::model {

struct Result {
  std::uint64_t executions = 0;  // run to their end
  std::uint64_t redundant = 0;   // left early, as the same as another up to commuting steps
  bool failed = false;
  bool complete = false;  // nothing is left to explore
  std::string failure;    // what, and the steps that led there
};

class Execution {
 public:
  /// At most kMostThreads. Locals of `body` that are alive when a failure is found are not
  /// destroyed: keep them trivial.
  void thread(std::function<void()> body);
  /// After all threads have ended, and ordered after them.
  void at_end(std::function<void()> body);
};

inline constexpr int kMostThreads = 3;

/// `setup` builds the program of one execution; it must do the same every time.
Result explore(const std::function<void(Execution&)>& setup,
               std::uint64_t most_executions = 20'000'000);

/// Ends the execution and the exploration when `condition` is false. Called within an execution.
void check(bool condition, const char* what);

/// Called inside a loop that waits by loading one atomic: continues when that atomic has changed
/// since the load.
void pause();

}  // namespace tandem::model
