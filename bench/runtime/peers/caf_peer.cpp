// CAF: event-based actors on a scheduler with one worker thread (what one loop of ours is).
#include <string>

#include <benchmark/benchmark.h>
#include <caf/all.hpp>

#include "bench/runtime/peers.hpp"

namespace tandem::bench {
namespace {

struct OneWorker : caf::actor_system_config {
  OneWorker() { set("scheduler.max-threads", 1U); }
};

caf::behavior player(caf::event_based_actor* self) {
  return {[self](const caf::actor& other, std::int64_t left) {
    if (left > 0) {
      self->send(other, caf::actor_cast<caf::actor>(self), left - 1);
    } else {
      self->send_exit(other, caf::exit_reason::user_shutdown);
      self->quit();
    }
  }};
}

void ping_pong(benchmark::State& state) {
  OneWorker config;
  caf::actor_system system(config);
  for (auto _ : state) {
    auto a = system.spawn(player);
    auto b = system.spawn(player);
    caf::anon_send(a, b, kRound);
    system.await_all_actors_done();
  }
  state.SetItemsProcessed(state.iterations() * kRound);
}

void ping_pong_far(benchmark::State& state) {
  OneWorker config;
  caf::actor_system system(config);
  for (auto _ : state) {
    auto a = system.spawn<caf::detached>(player);
    auto b = system.spawn<caf::detached>(player);
    caf::anon_send(a, b, kFarRound);
    system.await_all_actors_done();
  }
  state.SetItemsProcessed(state.iterations() * kFarRound);
}

caf::behavior switcher(caf::event_based_actor* self) {
  return {[self](std::int64_t left) {
    if (left > 0) {
      self->send(self, left - 1);
    } else {
      self->quit();
    }
  }};
}

void switch_local(benchmark::State& state) {
  OneWorker config;
  caf::actor_system system(config);
  for (auto _ : state) {
    caf::anon_send(system.spawn(switcher), kRound);
    system.await_all_actors_done();
  }
  state.SetItemsProcessed(state.iterations() * kRound);
}

caf::behavior counter(caf::event_based_actor* self, std::int64_t left) {
  return {[self, left](std::int64_t) mutable {
    if (--left == 0) {
      self->quit();
    }
  }};
}

void mailbox(benchmark::State& state, int senders) {
  OneWorker config;
  caf::actor_system system(config);
  for (auto _ : state) {
    auto sink = system.spawn(counter, kSends * senders);
    measure_senders(
        state, senders, [sink](std::int64_t k) { caf::anon_send(sink, k); },
        [&] { system.await_all_actors_done(); });
  }
  state.SetItemsProcessed(state.iterations() * kSends * senders);
}

void spawn(benchmark::State& state) {
  OneWorker config;
  caf::actor_system system(config);
  constexpr std::int64_t kSpawns = kRound / 10;
  for (auto _ : state) {
    for (std::int64_t i = 0; i < kSpawns; i += 100) {
      for (int k = 0; k < 100; ++k) {
        caf::anon_send(system.spawn(switcher), std::int64_t{0});
      }
      system.await_all_actors_done();
    }
  }
  state.SetItemsProcessed(state.iterations() * kSpawns);
}

caf::behavior oracle(caf::event_based_actor*) {
  return {[](std::int64_t value) { return value + 1; }};
}
void ask_next(caf::event_based_actor* self, const caf::actor& whom, std::int64_t left) {
  if (left == 0) {
    self->send_exit(whom, caf::exit_reason::user_shutdown);
    self->quit();
    return;
  }
  self->request(whom, std::chrono::seconds(1), left).then([self, whom, left](std::int64_t) {
    ask_next(self, whom, left - 1);
  });
}

void ask(benchmark::State& state) {
  OneWorker config;
  caf::actor_system system(config);
  for (auto _ : state) {
    auto whom = system.spawn(oracle);
    system.spawn([whom](caf::event_based_actor* self) { ask_next(self, whom, kRound / 10); });
    whom = nullptr;
    system.await_all_actors_done();
  }
  state.SetItemsProcessed(state.iterations() * (kRound / 10));
}

}  // namespace

bool register_caf() {
  const auto add = [](const char* name, void (*function)(benchmark::State&)) {
    benchmark::RegisterBenchmark((std::string(name) + "/CAF").c_str(), function)->UseRealTime();
  };
  add(kPingPong, &ping_pong);
  add(kPingPongFar, &ping_pong_far);
  for (const int senders : {1, 2, 4}) {
    benchmark::RegisterBenchmark(
        (std::string(kMailbox) + " " + std::to_string(senders) + "/CAF").c_str(),
        [senders](benchmark::State& state) { mailbox(state, senders); })
        ->UseManualTime();
  }
  add(kSwitch, &switch_local);
  add(kSpawn, &spawn);
  add(kAsk, &ask);
  return true;
}

}  // namespace tandem::bench
