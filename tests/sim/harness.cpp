#include "tests/sim/harness.hpp"

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/detail/mailbox/ask_table.hpp"
#include "runtime/util/build.hpp"

namespace tandem::sim_test {
namespace {

constexpr std::size_t kTail = 60;
constexpr unsigned kHangSeconds = 10;      // CPU time for one rehearsal
constexpr unsigned kLongHangSeconds = 60;  // of hundreds of ranks, in a sanitizer's build
unsigned g_limit_seconds = 0;              // 0 outside the process of a range
const char* g_flag = "";                   // of test_sim, that chooses the rehearsal

constexpr std::array<const char*, kBugs> kBugNames = {
    "none",
    "lost_wake_up",
    "double_resume",
    "credit_leak",
    "late_reply_delivered",
    "collective_order",
    "use_after_cancel",
    "dropped_on_close",
    "returned_twice",
    "timer_fires_twice",
    "timer_not_disarmed",
    "slot_released_twice",
    "reduce_in_arrival_order",
    "stop_not_told",
    "join_too_early",
    "pending_reply_unlinked",
    "short_read_taken_as_whole",
    "no_space_ignored",
    "event_before_copy",
    "chunk_skipped",
    "resident_too_old",
    "files_not_synced",
    "name_before_entries",
    "commit_not_synced",
    "hashed_before_written",
    "named_before_sealed",
    "vote_counted_twice",
    "removal_not_synced",
    "sleeps_unseen",
    "stage_lent_twice",
    "group_number_kept",
    "group_wait_unsaid",
    "slot_freed_before_visit",
    "verdict_before_reductions",
    "constants_set_early",
    "constants_not_awaited",
    "rollback_forgotten",
    "version_kept",
    "reduction_order_kept",
    "gradient_tickets_kept",
    "first_gradient_added",
    "old_weights_gathered",
    "gather_order_kept",
    "padding_kept",
    "redo_forgotten",
    "shadow_committed_twice",
    "boundary_freed_early",
    "boundary_taken_early",
    "boundary_room_shared",
    "gather_failure_unsaid",
    "boundary_failure_lost",
    "updates_not_drained",
    "cause_hidden",
};

void print_end_of_child(int status, std::uint64_t seed) {
  if (!WIFSIGNALED(status)) {
    return;
  }
  const int signal = WTERMSIG(status);
  const bool hangs = signal == SIGPROF || signal == SIGALRM;
  fmt::print(stderr, "seed {} {} (signal {})\n", seed,
             hangs ? "hangs: a rehearsal reached its time limit" : "crashes", signal);
}

}  // namespace

void renew_time_limit() {
  if (g_limit_seconds == 0) {
    return;
  }
  const itimerval computing{
      .it_interval = {},
      .it_value = {.tv_sec = static_cast<time_t>(g_limit_seconds), .tv_usec = 0}};
  ::setitimer(ITIMER_PROF, &computing, nullptr);
  ::alarm(10 * g_limit_seconds);
}

const char* name_of(Bug bug) { return kBugNames[static_cast<std::size_t>(bug)]; }

Bug bug_named(const std::string& name) {
  std::size_t i = 0;
  while (i < kBugNames.size() && name != kBugNames[i]) {
    ++i;
  }
  return static_cast<Bug>(i);
}

Run::Run(const char* scenario, std::uint64_t seed_in, std::uint32_t ranks)
    : seed(seed_in),
      world({.seed = seed_in, .ranks = ranks, .limit = std::chrono::seconds(60)}),
      random(Random(seed_in).fork(scenario)),
      scenario_(scenario) {}

void Run::until(const char* what, const std::function<bool()>& done) {
  const SimWorld::End end = world.run([&] {
    if (each_step) {
      each_step();
    }
    return done();
  });
  if (end != SimWorld::End::kDone) {
    breach(
        fmt::format("{} before {}", end == SimWorld::End::kStuck ? "stuck" : "out of time", what));
  }
}

void Run::require_quiet() {
  for (std::uint32_t rank = 0; rank < world.ranks(); ++rank) {
    require(world.loop(rank).asks().pending() == 0, "rank {} ends with asks pending", rank);
    require(world.loop(rank).next_deadline() == TimePoint::max(), "rank {} ends with a timer armed",
            rank);
  }
}

void Run::breach(const std::string& what) {
  const std::string bug =
      g_planted_bug == Bug::kNone ? "" : fmt::format(" --bug {}", name_of(g_planted_bug));
  std::string text = world.log().tail(kTail);
  for (Scope** scope : inner) {
    watched.push_back(*scope);
  }
  for (const Scope* scope : watched) {
    if (scope != nullptr && scope->running() > 0) {
      text += fmt::format("rank {}: {}", scope->loop().name(), scope->describe());
    }
  }
  fmt::print(
      stderr,
      "{}seed {} ({}, {} ranks) at {:.6f} s: {}\nrepeat: build/release/bin/test_sim {}--seed "
      "{}{}\n",
      text, seed, scenario_, world.ranks(), std::chrono::duration<double>(world.elapsed()).count(),
      what, g_flag, seed, bug);
  std::fflush(stderr);
  std::_Exit(3);
}

Outcome run_seed(std::uint64_t seed) {
  g_flag = "";
  const std::uint64_t kind = Random(seed).fork("scenario").below(100);
  if (kind < 20) {
    return {"training", rehearse_training(seed)};
  }
  if (kind < 40) {
    return {"messages", rehearse_messages(seed)};
  }
  if (kind < 58) {
    return {"asks", rehearse_asks(seed)};
  }
  if (kind < 72) {
    return {"primitives", rehearse_primitives(seed)};
  }
  if (kind < 77) {
    return {"hosts", rehearse_hosts(seed)};
  }
  if (kind < 87) {
    return {"groups", rehearse_groups(seed)};
  }
  if (kind < 93) {
    return {"checkpoint", rehearse_checkpoint(seed)};
  }
  return {"files", rehearse_files(seed)};
}

Outcome run_each_fault(std::uint64_t seed) {
  g_flag = "--each-fault ";
  return rehearse_each_fault(seed, 1);
}

Outcome run_some_faults(std::uint64_t seed) {
  g_flag = "--each-fault ";
  return rehearse_each_fault(seed, kAddressSanitizer || kThreadSanitizer ? 53 : 11);
}

Outcome run_many_hosts(std::uint64_t seed) {
  g_flag = "--many-hosts ";
  return {"many hosts", rehearse_hosts(seed, 64, 8)};
}

Range run_range(std::uint64_t first, std::uint64_t count, bool quiet,
                Outcome (*rehearse)(std::uint64_t seed)) {
  auto* at = static_cast<std::uint64_t*>(::mmap(
      nullptr, sizeof(std::uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    if (quiet) {
      const int nowhere = ::open("/dev/null", O_WRONLY);
      ::dup2(nowhere, 1);
      ::dup2(nowhere, 2);
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      *at = first + i;
      g_limit_seconds = rehearse == &run_many_hosts ? kLongHangSeconds : kHangSeconds;
      renew_time_limit();
      rehearse(first + i);
    }
    std::exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  print_end_of_child(status, *at);
  const Range range{!(WIFEXITED(status) && WEXITSTATUS(status) == 0), *at};
  ::munmap(at, sizeof(std::uint64_t));
  return range;
}

}  // namespace tandem::sim_test
