// runtime/supervision/describe.hpp — describes what lives on a loop and what it waits for, to show
// why nothing moves.
//
//   loop "rank 0" at 12.250 s: 2 scopes, 1 actor, 0 asks without an answer, 1 timer
//   scope "root": 2 running
//     reader (pump at actor.hpp:128, 3.002 s) <- parse (reader.cpp:40, 3.002 s) <- [completion]
//   actor reader: 3 messages wait
//
// Thread rule: the loop's thread (or the owner's while the loop does not run); request_dump() from
// any thread. The times are those of the loop's last look at its clock, so they are some
// microseconds coarse.
#pragma once

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>

#include "runtime/clock.hpp"

namespace tandem {

class EventLoop;

/// Describes every scope with its tasks' await chains, and every actor with the depth of its
/// mailbox.
[[nodiscard]] std::string describe_tasks(EventLoop& loop);

/// Describes the same as JSON: {"loop", "at_s", "asks", "timers", "scopes": [{"name", "tasks":
/// [{"name", "awaits", "at", "since_s", "chain"}]}], "actors": [{"name", "depth", "closed"}]}, the
/// oldest first. since_s is null for a task that has not run yet.
[[nodiscard]] std::string tasks_json(EventLoop& loop);

/// Prints describe_tasks(loop) and the last operations of the flight recorder to `out` as soon as
/// the loop gets to it. Any thread; the loop must outlive the request.
void request_dump(EventLoop& loop, std::FILE* out = stderr);

/// While it lives, `signal` (Ctrl-\ by default) prints describe_tasks(loop) to stderr instead of
/// ending the process, and appends it to `file` (empty: none; a file that cannot be opened is
/// ignored). Then the program's former handling is in place again. The loop's thread (or the
/// owner's while the loop does not run).
class DumpOnSignal {
 public:
  explicit DumpOnSignal(EventLoop& loop, int signal = SIGQUIT, std::string file = {});
  ~DumpOnSignal();
  DumpOnSignal(const DumpOnSignal&) = delete;
  DumpOnSignal& operator=(const DumpOnSignal&) = delete;

 private:
  struct Signals;
  std::shared_ptr<Signals> signals_;
};

}  // namespace tandem
