// tests/support/actor_world.hpp — a loop, a scope for actors and a pool, and how a test runs and
// ends them.
#pragma once

#include "runtime/actor.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"

namespace tandem::test {

struct World {
  EventLoop loop{{.name = "test"}};
  CpuPool pool{loop, {.threads = 2, .name = "test pool"}};
  Scope scope{loop, "actors"};

  /// Ends all actors. Their tasks have to be done or able to end. Failures of the scope are the
  /// test's to look at.
  ~World() { end(); }

  void end() {
    scope.request_stop();
    loop.run([](Scope* ended) -> Task<> { co_await ended->empty(); }, &scope);
  }
};

/// Lets everything that can run on the loop run, what tests sent from outside included: that comes
/// in by the inbox, which the loop looks into after some hundred operations.
inline Task<> settle() {
  for (int i = 0; i < 2000; ++i) {
    co_await yield();
  }
}

}  // namespace tandem::test
