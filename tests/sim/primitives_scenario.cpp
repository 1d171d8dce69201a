// Events, sleeps, stops, scopes, pools and completions under a random schedule: each await ends
// once, in time, and a join is the end of all.
#include <memory>
#include <vector>

#include "runtime/completion.hpp"
#include "runtime/scope.hpp"
#include "runtime/sim/sim_net.hpp"
#include "runtime/sim/sim_pool.hpp"
#include "runtime/sleep.hpp"
#include "tests/sim/harness.hpp"

namespace tandem::sim_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Duration kSlack = milliseconds(2);

struct World {
  World(Run& run_in, std::uint32_t rank_in)
      : run(run_in),
        rank(rank_in),
        random(run.random.fork(rank_in)),
        workers(run.world, rank, {.threads = 3}),
        pool(run.world.loop(rank), {.threads = 3, .driver = &workers}),
        scope(run.world.loop(rank), Name("primitives")) {
    run.watched.push_back(&scope);
    for (int i = 0; i < 3; ++i) {
      events.push_back(std::make_unique<Event>());
    }
  }

  Run& run;
  std::uint32_t rank;
  Random random;
  SimPool workers;
  CpuPool pool;
  Scope scope;
  std::vector<std::unique_ptr<Event>> events;
  StopSource stop;
  TimePoint stopped_at = TimePoint::max();
  int begun = 0;
  int ended = 0;

  // A sleep ends at its deadline, or soon after the stop.
  static Task<> sleeper(World* w) {
    ++w->begun;
    const TimePoint start = EventLoop::current().now();
    const Duration length = microseconds(w->random.between(1, 5000));
    bool stopped = false;
    try {
      co_await sleep_for(length, w->stop.token());
    } catch (const Stopped&) {
      stopped = true;
    }
    const TimePoint now = EventLoop::current().now();
    const TimePoint due = stopped ? std::max(w->stopped_at, start) : start + length;
    w->run.require(now >= due && now < due + kSlack, "a sleep ended {} ns after its time",
                   (now - due).count());
    w->run.require(
        stopped || w->stopped_at == TimePoint::max() || start + length <= w->stopped_at + kSlack,
        "a sleep was not told of the stop");
    ++w->ended;
  }

  static Task<> waiter(World* w, std::size_t event) {
    ++w->begun;
    try {
      co_await w->events[event]->wait(w->random.chance(0.7) ? w->stop.token() : StopToken());
      w->run.require(w->events[event]->is_set(), "an event's waiter ran before it was set");
    } catch (const Stopped&) {
      w->run.require(w->stop.stop_requested(), "a waiter was stopped without a request");
    }
    co_await sleep_for(microseconds(w->random.between(1, 30)));
    ++w->ended;
  }

  static Task<> setter(World* w) {
    for (const auto& event : w->events) {
      co_await sleep_for(microseconds(w->random.between(1, 3000)));
      event->set();
    }
  }

  // Children of children: when the scope is left, all have ended.
  static Task<> nest(World* w, int depth) {
    int left = 0;
    co_await with_scope(
        [](Scope& scope, World* world, int* count, int levels) -> Task<> {
          const std::uint64_t children = 1 + world->random.below(3);
          for (std::uint64_t i = 0; i < children; ++i) {
            ++*count;
            scope.spawn(
                "child",
                [](World* inner, int* open, int below) -> Task<> {
                  co_await sleep_for(microseconds(inner->random.between(0, 300)));
                  if (below > 0) {
                    co_await World::nest(inner, below - 1);
                  }
                  --*open;
                },
                world, count, levels);
          }
          co_return;
        },
        w, &left, depth);
    w->run.require(left == 0, "a scope was left with {} children running", left);
  }

  static Task<> chunks(World* w) {
    const std::uint64_t count = 1 + w->random.below(20);
    std::vector<int> ran(count);
    int* out = ran.data();
    co_await w->pool.for_chunks(count, [out](std::size_t chunk) { ++out[chunk]; });
    for (std::size_t i = 0; i < count; ++i) {
      w->run.require(ran[i] == 1, "chunk {} of {} ran {} times", i, count, ran[i]);
    }
    const int value = co_await w->pool.run([] { return 42; });
    w->run.require(value == 42, "a pool's value is lost");
  }

  static Task<> complete_elsewhere(World* w, World* other) {
    Completion<int> done(EventLoop::current());
    other->scope.spawn(
        "completes",
        [](Completion<int>* completion, Duration delay) -> Task<> {
          co_await sleep_for(delay);
          completion->set_value(7);
        },
        &done, Duration(microseconds(w->random.between(0, 200))));
    const int value = co_await done;
    w->run.require(value == 7, "a completion's value is lost");
  }
};

constexpr int kFrames = 12;

Task<> send_frames(World* w, Net* net, std::uint32_t peer) {
  for (int i = 0; i < kFrames; ++i) {
    const auto frame = static_cast<std::byte>(i);
    co_await net->send(peer, 0, std::span(&frame, 1));
    co_await sleep_for(microseconds(w->random.between(0, 60)));
  }
}

// Receives that are stopped now and then: every frame comes once, in order.
Task<> receive_frames(World* w, Net* net, std::uint32_t peer) {
  for (int i = 0; i < kFrames;) {
    std::byte frame{};
    StopSource impatience;
    Scope timer(EventLoop::current(), "impatience");
    timer.spawn(
        "impatient",
        [](StopSource* source, Duration patience, StopToken over) -> Task<> {
          co_await sleep_for(patience, over);
          source->request_stop();
        },
        &impatience, Duration(microseconds(w->random.between(1, 80))), timer.stop_token());
    bool got = false;
    try {
      got = co_await net->recv(peer, 0, std::span(&frame, 1), impatience.token()) == 1;
    } catch (const Stopped&) {
    }
    timer.request_stop();
    co_await timer.join();
    if (got) {
      w->run.require(frame == static_cast<std::byte>(i), "frame {} came when {} was due",
                     static_cast<int>(frame), i);
      ++i;
    }
  }
}

}  // namespace

std::uint64_t rehearse_primitives(std::uint64_t seed) {
  const auto ranks = static_cast<std::uint32_t>(1 + Random(seed).fork("ranks").below(3));
  Run run("primitives", seed, ranks);
  std::vector<std::unique_ptr<World>> worlds;
  SimNet links(run.world, {});
  std::vector<std::unique_ptr<Net>> nets;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    worlds.push_back(std::make_unique<World>(run, rank));
    nets.push_back(std::make_unique<Net>(links.attach(rank)));
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    World* w = worlds[rank].get();
    World* next = worlds[(rank + 1) % ranks].get();
    for (int i = 0; i < 6; ++i) {
      w->scope.spawn("sleeper", &World::sleeper, w);
      w->scope.spawn("waiter", &World::waiter, w, w->random.below(w->events.size()));
    }
    w->scope.spawn("setter", &World::setter, w);
    w->scope.spawn("nest", &World::nest, w, 2);
    w->scope.spawn("chunks", &World::chunks, w);
    w->scope.spawn("chunks", &World::chunks, w);
    if (ranks > 1) {
      w->scope.spawn("elsewhere", &World::complete_elsewhere, w, next);
      w->scope.spawn("send frames", &send_frames, w, nets[rank].get(), next->rank);
      w->scope.spawn("receive frames", &receive_frames, w, nets[rank].get(),
                     (rank + ranks - 1) % ranks);
    }
    run.world.after(microseconds(run.random.between(10, 6000)), rank, [w] {
      w->stopped_at = w->run.world.now();
      w->stop.request_stop();
    });
  }
  run.until("all tasks end", [&] {
    for (const auto& w : worlds) {
      if (w->scope.running() > 0) {
        return false;
      }
    }
    return true;
  });
  for (const auto& w : worlds) {
    run.require(w->begun == 12 && w->ended == 12, "{} of 12 waits ended", w->ended);
    run.require(w->scope.failures().empty(), "a task failed");
  }
  run.require_quiet();
  return run.world.log().hash();
}

}  // namespace tandem::sim_test
