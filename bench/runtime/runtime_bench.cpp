// The costs of a message, a call, a switch, a spawn, an ask and a wake from another thread:
// RB1-RB4.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <ctime>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/runtime/peers.hpp"
#include "runtime/actor.hpp"
#include "runtime/compute_lane.hpp"
#include "runtime/flight.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/sleep.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

using bench::kFarRound;
using bench::kRound;

void add(const std::string& name, void (*function)(benchmark::State&)) {
  benchmark::RegisterBenchmark((name + "/Tandem").c_str(), function)->UseRealTime();
}

// Each benchmark body runs inside one loop; items are operations.
template <class Factory, class... Args>
void measure(benchmark::State& state, std::int64_t items, Factory factory, Args... args) {
  EventLoop loop;
  for (auto _ : state) {
    loop.run(factory, args...);
  }
  state.SetItemsProcessed(state.iterations() * items);
}

void flight_record(benchmark::State& state) {
  std::uint64_t number = 0;
  for (auto _ : state) {
    flight::record(
        {.what = flight::Kind::kAllGather, .unit = 7, .number = ++number, .bytes = 4096});
  }
  state.SetItemsProcessed(state.iterations());
}

[[gnu::noinline]] Task<std::int64_t> add_one(std::int64_t value) { co_return value + 1; }

void call(benchmark::State& state) {
  measure(state, kRound, []() -> Task<> {
    std::int64_t value = 0;
    for (std::int64_t i = 0; i < kRound; ++i) {
      value = co_await add_one(value);
    }
    benchmark::DoNotOptimize(value);
  });
}

void switch_local(benchmark::State& state) {
  measure(state, kRound, []() -> Task<> {
    for (std::int64_t i = 0; i < kRound; ++i) {
      co_await yield();
    }
  });
}

// Through the cross-thread inbox, posted by the loop's own thread.
struct RemoteYield {
  bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
    resume.set(coroutine);
    EventLoop::current().post_from_any_thread(resume);
  }
  void await_resume() const noexcept {}
  detail::ResumeOp resume;
};

void switch_remote(benchmark::State& state) {
  measure(state, kRound, []() -> Task<> {
    for (std::int64_t i = 0; i < kRound; ++i) {
      co_await RemoteYield{};
    }
  });
}

void spawn_and_join(benchmark::State& state) {
  measure(state, kRound, []() -> Task<> {
    Scope scope(EventLoop::current());
    for (std::int64_t i = 0; i < kRound; i += 100) {
      for (int k = 0; k < 100; ++k) {
        scope.spawn("noop", []() -> Task<> { co_return; });
      }
      co_await scope.join();
    }
  });
}

struct Ball {
  std::int64_t value;
};
struct Player : Actor<Player, Ball> {
  void handle(Ball ball) {
    if (ball.value == 0) {
      done->set();
    } else {
      (void)other.try_send(Ball{ball.value - 1});
    }
  }
  Address<Ball> other;
  Event* done = nullptr;
};

void ping_pong_same_loop(benchmark::State& state) {
  EventLoop loop;
  Scope scope(loop);
  Event done;
  Player a;
  Player b;
  a.other = b.address();
  b.other = a.address();
  a.done = b.done = &done;
  a.start(scope);
  b.start(scope);
  for (auto _ : state) {
    done.reset();
    (void)a.address().try_send(Ball{kRound});
    loop.run([](Event* event) -> Task<> { co_await *event; }, &done);
  }
  state.SetItemsProcessed(state.iterations() * kRound);
  a.close();
  b.close();
  loop.run(&Scope::join, &scope);
}

struct Question {
  using Reply = std::int64_t;
  std::int64_t value;
};
struct Oracle : Actor<Oracle, Question> {
  std::int64_t handle(Question q) { return q.value + 1; }
};

// Two loops, each on a thread; a ball goes to and fro. `spin` is how both wait.
struct Quit {};
struct FarPlayer : Actor<FarPlayer, Ball, Quit> {
  void handle(Ball ball) {
    if (ball.value == 0) {
      done->set();
    } else {
      (void)other.try_send(Ball{ball.value - 1});
    }
  }
  void handle(Quit) { close(); }
  Address<Ball, Quit> other;
  Event* done = nullptr;
};

void ping_pong_two_loops(benchmark::State& state, Spin spin) {
  EventLoop here({.spin = spin});
  Scope scope(here);
  Event done;
  FarPlayer a;
  FarPlayer b;
  b.other = a.address();
  a.other = b.address();
  a.done = &done;
  a.start(scope);
  std::atomic<bool> ready{false};
  std::thread thread([&] {
    EventLoop there({.spin = spin});
    Scope far_scope(there);
    b.start(far_scope);
    ready = true;
    there.run(&Scope::join, &far_scope);
  });
  while (!ready) {
    std::this_thread::yield();
  }
  for (auto _ : state) {
    done.reset();
    (void)b.address().try_send(Ball{kFarRound - 1});  // an odd number: a takes the last
    here.run([](Event* event) -> Task<> { co_await *event; }, &done);
  }
  state.SetItemsProcessed(state.iterations() * kFarRound);
  (void)b.address().try_send(Quit{});
  thread.join();
  a.close();
  here.run(&Scope::join, &scope);
}
void ping_pong_blocking(benchmark::State& state) { ping_pong_two_loops(state, Spin::kNever); }
void ping_pong_adaptive(benchmark::State& state) { ping_pong_two_loops(state, Spin::kAuto); }

// One core is kept busy by another process.
void ping_pong_core_taken(benchmark::State& state) {
  const pid_t hog = fork();
  if (hog == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (volatile std::uint64_t i = 0;; i = i + 1) {
    }
  }
  ping_pong_two_loops(state, Spin::kAuto);
  kill(hog, SIGKILL);
  waitpid(hog, nullptr, 0);
}

template <bool kDeadline>
void ask(benchmark::State& state) {
  EventLoop loop;
  Scope scope(loop);
  Oracle oracle;
  oracle.start(scope);
  for (auto _ : state) {
    loop.run(
        [](Address<Question> address) -> Task<> {
          std::int64_t value = 0;
          for (std::int64_t i = 0; i < kRound; ++i) {
            if constexpr (kDeadline) {
              value = co_await address.ask(Question{value}, 1s);
            } else {
              value = co_await address.ask(Question{value});
            }
          }
          benchmark::DoNotOptimize(value);
        },
        oracle.address());
  }
  state.SetItemsProcessed(state.iterations() * kRound);
  oracle.close();
  loop.run(&Scope::join, &scope);
}
void ask_without_deadline(benchmark::State& state) { ask<false>(state); }
void ask_with_deadline(benchmark::State& state) { ask<true>(state); }

// The oracle lives on a loop of its own.
struct FarOracle : Actor<FarOracle, Question, Quit> {
  std::int64_t handle(Question q) { return q.value + 1; }
  void handle(Quit) { close(); }
};
// `asks` per iteration, each after `pause`; counters: how long they took, and the CPU time of the
// process over the time that passed.
void ask_far(benchmark::State& state, std::int64_t asks, Duration pause) {
  FarOracle oracle;
  std::atomic<bool> ready{false};
  std::thread thread([&] {
    EventLoop there;
    Scope scope(there);
    oracle.start(scope);
    ready = true;
    there.run(&Scope::join, &scope);
  });
  while (!ready) {
    std::this_thread::yield();
  }
  EventLoop here;
  std::vector<double> took_us;
  const TimePoint start = here.now();
  const std::clock_t cpu_start = std::clock();
  for (auto _ : state) {
    here.run(
        [](Address<Question, Quit> address, std::int64_t times, Duration between,
           std::vector<double>* out) -> Task<> {
          for (std::int64_t i = 0; i < times; ++i) {
            if (between > Duration(0)) {
              co_await sleep_for(between);
            }
            const TimePoint asked = EventLoop::current().now();
            benchmark::DoNotOptimize(co_await address.ask(Question{i}, 1s));
            const Duration took = EventLoop::current().now() - asked;
            out->push_back(static_cast<double>(took.count()) * 1e-3);
          }
        },
        oracle.address(), asks, pause, &took_us);
  }
  const double cpu_s = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
  state.counters["cpu_percent"] =
      100 * cpu_s / std::chrono::duration<double>(here.now() - start).count();
  std::ranges::sort(took_us);
  state.counters["p50_us"] = took_us[took_us.size() / 2];
  state.counters["p99_us"] = took_us[took_us.size() * 99 / 100];
  state.SetItemsProcessed(state.iterations() * asks);
  (void)oracle.address().try_send(Quit{});
  thread.join();
}
void ask_two_loops(benchmark::State& state) { ask_far(state, bench::kFarRound, Duration(0)); }
void ask_every_3_ms(benchmark::State& state) { ask_far(state, 100, 3ms); }

void ask_outstanding(benchmark::State& state) {
  constexpr int kOutstanding = 10'000;
  struct Slow : Actor<Slow, Question> {
    Slow() : Actor("slow", kOutstanding) {}
    std::int64_t handle(Question q) { return q.value; }
  };
  EventLoop loop;
  Scope scope(loop);
  Slow slow;
  slow.start(scope);
  for (auto _ : state) {
    loop.run(
        [](Address<Question> address) -> Task<> {
          Scope askers(EventLoop::current());
          for (int i = 0; i < kOutstanding; ++i) {
            askers.spawn(
                "asker",
                [](Address<Question> whom) -> Task<> { (void)co_await whom.ask(Question{1}, 1s); },
                address);
          }
          co_await askers.join();
        },
        slow.address());
  }
  state.SetItemsProcessed(state.iterations() * kOutstanding);
  slow.close();
  loop.run(&Scope::join, &scope);
}

struct Number {
  std::int64_t value;
};
struct Sink : Actor<Sink, Number> {
  explicit Sink(std::uint32_t credits) : Actor("sink", credits) {}
  void handle(Number) {
    if (--left == 0) {
      done->set();
    }
  }
  std::int64_t left = 0;
  Event* done = nullptr;
};

// P threads that run no loop send into one bounded mailbox, and sleep while it is full.
void mailbox_from_threads(benchmark::State& state, int senders, std::uint32_t credits) {
  EventLoop loop;
  Scope scope(loop);
  Event done;
  Sink sink(credits);
  sink.done = &done;
  sink.start(scope);
  for (auto _ : state) {
    done.reset();
    sink.left = bench::kSends * senders;
    bench::measure_senders(
        state, senders,
        [address = sink.address()](std::int64_t k) { (void)address.send_blocking(Number{k}); },
        [&] { loop.run([](Event* event) -> Task<> { co_await *event; }, &done); });
  }
  state.SetItemsProcessed(state.iterations() * bench::kSends * senders);
  state.counters["credits"] = credits;
  sink.close();
  loop.run(&Scope::join, &scope);
}

// With TANDEM_SPIN=never for what `function` makes.
template <void (*kFunction)(benchmark::State&)>
void sleeping(benchmark::State& state) {
  setenv("TANDEM_SPIN", "never", 1);
  kFunction(state);
  unsetenv("TANDEM_SPIN");
}

// A hop to the compute lane and back: two wakes when both sides block.
void lane_round_trip(benchmark::State& state) {
  EventLoop loop;
  ComputeLane lane(loop);
  constexpr std::int64_t kHops = 1000;
  const std::clock_t cpu_start = std::clock();
  for (auto _ : state) {
    loop.run(
        [](ComputeLane* to) -> Task<> {
          for (std::int64_t i = 0; i < kHops; ++i) {
            co_await to->run([] {});
          }
        },
        &lane);
  }
  const auto hops = static_cast<double>(state.iterations() * kHops);
  state.SetItemsProcessed(state.iterations() * kHops);
  state.counters["cpu_us"] =
      1e6 * static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC / hops;
}

}  // namespace

namespace bench {
void register_runtime() {
  add(kPingPong, &ping_pong_same_loop);
  add(kPingPongFar, &ping_pong_blocking);
  add("RB1c ping-pong, two loops, adaptive", &ping_pong_adaptive);
  add("RB1d as RB1c, a core taken", &ping_pong_core_taken);
  for (const int senders : {1, 2, 4}) {
    for (const std::uint32_t credits : {kMailboxCredits, kDefaultCredits}) {
      const std::string name = std::string(kMailbox) + " " + std::to_string(senders);
      benchmark::RegisterBenchmark(
          (name + (credits == kDefaultCredits ? ", default credits" : "") + "/Tandem").c_str(),
          [senders, credits](benchmark::State& state) {
            mailbox_from_threads(state, senders, credits);
          })
          ->UseManualTime();
    }
  }
  add(kCall, &call);
  add(kSwitch, &switch_local);
  add("RB3 switch, remote", &switch_remote);
  add(kSpawn, &spawn_and_join);
  add("RB4 ask, same loop", &ask_without_deadline);
  add(kAsk, &ask_with_deadline);
  add("RB4 ask with a deadline, two loops", &ask_two_loops);
  add("RB4 ask with a deadline, two loops, blocking", &sleeping<ask_two_loops>);
  add("RB4 ask every 3 ms, two loops", &ask_every_3_ms);
  add("RB4 ask every 3 ms, two loops, blocking", &sleeping<ask_every_3_ms>);
  add("RB4 ask with a deadline, 10k outstanding", &ask_outstanding);
  add("compute lane, round trip", &lane_round_trip);
  add("compute lane, round trip, blocking", &sleeping<lane_round_trip>);
  add("flight record", &flight_record);
}
}  // namespace bench
}  // namespace tandem
