// tests/sim/harness.hpp — one rehearsal: a world, what it watches, and how a broken promise is
// reported.
//
// Every scenario is a function of a seed that ends normally if all its promises were kept. A breach
// prints what, the await chains, the tail of the event log and the one command that repeats it, and
// ends the process at once: what broke may not be destroyed safely. Ranges of seeds therefore run
// in child processes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/scope.hpp"
#include "runtime/sim/sim_world.hpp"
#include "runtime/util/planted.hpp"

namespace tandem::sim_test {

class Run {
 public:
  Run(const char* scenario, std::uint64_t seed, std::uint32_t ranks);

  std::uint64_t seed;
  SimWorld world;
  Random random;  // the scenario's
  std::vector<Scope*> watched;
  std::vector<Scope**> inner;  // WatchedScope's

  /// Until done(); a breach if the world gets stuck before. `each_step` is a promise that always
  /// holds.
  void until(const char* what, const std::function<bool()>& done);
  std::function<void()> each_step;

  template <class... Args>
  void require(bool holds, fmt::format_string<Args...> what, Args&&... args) {
    if (!holds) {
      breach(fmt::format(what, std::forward<Args>(args)...));
    }
  }
  [[noreturn]] void breach(const std::string& what);
  /// Nothing is pending on any loop: no ask, no timer.
  void require_quiet();

 private:
  const char* scenario_;
};

/// Shows the tasks of a scope that lives inside a coroutine, too, when the world is stuck.
class WatchedScope {
 public:
  explicit WatchedScope(Run& run) : run_(run) { run.inner.push_back(&scope_); }
  ~WatchedScope() { std::erase(run_.inner, &scope_); }
  WatchedScope(const WatchedScope&) = delete;
  WatchedScope& operator=(const WatchedScope&) = delete;
  /// Where the address of the scope goes.
  [[nodiscard]] Scope** place() const noexcept { return &scope_; }

 private:
  Run& run_;
  mutable Scope* scope_ = nullptr;
};

struct Outcome {
  const char* scenario;
  std::uint64_t hash;      // the event log's
  std::uint64_t runs = 1;  // that it took
};
/// Runs the scenario that `seed` chooses.
Outcome run_seed(std::uint64_t seed);
/// Collectives of 64 hosts with 8 ranks each.
Outcome run_many_hosts(std::uint64_t seed);
/// A small training, again and again: each operation of each rank fails, or the rank is stopped
/// during it.
Outcome run_each_fault(std::uint64_t seed);
/// The same for each eleventh operation, from one on that depends on the seed (in a sanitizer's
/// build, which is ten times as slow, each 53rd).
Outcome run_some_faults(std::uint64_t seed);

// The scenarios.
std::uint64_t rehearse_training(std::uint64_t seed);
Outcome rehearse_each_fault(std::uint64_t seed, std::uint64_t stride);
std::uint64_t rehearse_messages(std::uint64_t seed);
std::uint64_t rehearse_asks(std::uint64_t seed);
std::uint64_t rehearse_primitives(std::uint64_t seed);
std::uint64_t rehearse_files(std::uint64_t seed);
std::uint64_t rehearse_checkpoint(std::uint64_t seed);
std::uint64_t rehearse_groups(std::uint64_t seed);
/// 0 hosts: as the seed has it.
std::uint64_t rehearse_hosts(std::uint64_t seed, std::uint32_t hosts = 0,
                             std::uint32_t per_host = 0);

/// Seeds [first, first + count) in a child process, until one breaks a promise (or crashes, or
/// hangs).
struct Range {
  bool found = false;
  std::uint64_t seed = 0;
};
Range run_range(std::uint64_t first, std::uint64_t count, bool quiet,
                Outcome (*rehearse)(std::uint64_t seed) = &run_seed);

/// Gives the process of a range its whole time limit again: it ends as a hang once a rehearsal has
/// computed that long, or has waited ten times as long. Other work on the machine ends none. Does
/// nothing in another process.
void renew_time_limit();

inline constexpr auto kBugs = static_cast<int>(Bug::kCount);
/// "lost_wake_up" for Bug::kLostWakeUp.
const char* name_of(Bug bug);
/// kBugs: no bug of that name.
Bug bug_named(const std::string& name);

}  // namespace tandem::sim_test
