// bench/runtime/runtime_bench.cpp — what a message, a call, a switch, a spawn, an ask and a wake from another thread cost.
#include <atomic>
#include <thread>

#include <benchmark/benchmark.h>

#include "runtime/actor.hpp"
#include "runtime/compute_lane.hpp"
#include "runtime/file_io.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kRound = 100'000;  // operations per iteration of a benchmark

// Each benchmark body runs inside one loop; items are operations.
template <class Factory, class... Args>
void measure(benchmark::State& state, std::int64_t items, Factory factory, Args... args) {
  EventLoop loop;
  for (auto _ : state) {
    loop.run(factory, args...);
  }
  state.SetItemsProcessed(state.iterations() * items);
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
BENCHMARK(call);

void switch_local(benchmark::State& state) {
  measure(state, kRound, []() -> Task<> {
    for (std::int64_t i = 0; i < kRound; ++i) {
      co_await yield();
    }
  });
}
BENCHMARK(switch_local);

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
BENCHMARK(switch_remote);

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
BENCHMARK(spawn_and_join);

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
BENCHMARK(ping_pong_same_loop);

struct Question {
  using Reply = std::int64_t;
  std::int64_t value;
};
struct Oracle : Actor<Oracle, Question> {
  std::int64_t handle(Question q) { return q.value + 1; }
};

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
BENCHMARK(ask_without_deadline);
BENCHMARK(ask_with_deadline);

struct Number {
  std::int64_t value;
};
struct Sink : Actor<Sink, Number> {
  void handle(Number) {
    if (--left == 0) {
      done->set();
    }
  }
  std::int64_t left = 0;
  Event* done = nullptr;
};

// P threads send into one mailbox as fast as it takes them.
void mailbox_from_threads(benchmark::State& state) {
  const auto senders = static_cast<int>(state.range(0));
  EventLoop loop({.spin = Spin::kAlways});
  Scope scope(loop);
  Event done;
  Sink sink;
  sink.done = &done;
  sink.start(scope);
  for (auto _ : state) {
    done.reset();
    sink.left = kRound * senders;
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(senders));
    for (int i = 0; i < senders; ++i) {
      threads.emplace_back([address = sink.address()] {
        for (std::int64_t k = 0; k < kRound; ++k) {
          while (address.try_send(Number{k}) == SendResult::kFull) {
            std::this_thread::yield();
          }
        }
      });
    }
    loop.run([](Event* event) -> Task<> { co_await *event; }, &done);
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  state.SetItemsProcessed(state.iterations() * kRound * senders);
  sink.close();
  loop.run(&Scope::join, &scope);
}
BENCHMARK(mailbox_from_threads)->Arg(1)->Arg(2)->Arg(4)->UseRealTime();

// A hop to the compute lane and back: two wakes when both sides block.
void lane_round_trip(benchmark::State& state) {
  EventLoop loop;
  ComputeLane lane(loop);
  constexpr std::int64_t kHops = 1000;
  for (auto _ : state) {
    loop.run(
        [](ComputeLane* to) -> Task<> {
          for (std::int64_t i = 0; i < kHops; ++i) {
            co_await to->run([] {});
          }
        },
        &lane);
  }
  state.SetItemsProcessed(state.iterations() * kHops);
}
BENCHMARK(lane_round_trip)->UseRealTime();

}  // namespace
}  // namespace tandem

BENCHMARK_MAIN();
