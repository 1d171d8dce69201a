// RB5, a mailbox under four times the load that its actor takes; RB6, from a completion on another
// thread to its coroutine.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "bench/runtime/peers.hpp"
#include "runtime/actor.hpp"
#include "runtime/completion.hpp"
#include "runtime/util/cpu_relax.hpp"

namespace tandem {
namespace {

std::int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
void spin_until(std::int64_t ns) {
  while (now_ns() < ns) {
    cpu_relax();
  }
}

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total = 0;
  std::int64_t resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// ---- RB5
constexpr std::uint32_t kDepth = 1024;
constexpr std::int64_t kProduceNs = 250;

struct Item {
  std::int64_t value;
};
struct SlowSink : Actor<SlowSink, Item> {
  SlowSink() : Actor("slow sink", kDepth) {}
  void handle(Item) {
    spin_until(now_ns() + 4 * kProduceNs);
    handled.fetch_add(1, std::memory_order_relaxed);
    if (--left == 0) {
      done->set();
    }
  }
  std::int64_t left = 0;
  Event* done = nullptr;
  std::atomic<std::int64_t> handled{0};
};

void overload(benchmark::State& state) {
  constexpr std::int64_t kHandled = 20'000;
  EventLoop loop;
  Scope scope(loop);
  Event done;
  SlowSink sink;
  sink.done = &done;
  sink.start(scope);
  std::int64_t depth_max = 0;
  std::int64_t resident = 0;
  for (auto _ : state) {
    done.reset();
    sink.left = kHandled;
    sink.handled = 0;
    std::thread producer([&sink, &depth_max, address = sink.address()] {
      std::int64_t sent = 0;
      for (std::int64_t next_ns = now_ns(); sent < kHandled; next_ns += kProduceNs) {
        spin_until(next_ns);
        sent += address.try_send(Item{sent}) == SendResult::kSent ? 1 : 0;
        depth_max = std::max(depth_max, sent - sink.handled.load(std::memory_order_relaxed));
      }
    });
    loop.run([](Event* event) -> Task<> { co_await *event; }, &done);
    producer.join();
    if (resident == 0) {
      resident = resident_bytes();  // warm: after the first round
    }
  }
  state.SetItemsProcessed(state.iterations() * kHandled);
  // the one being handled counts, too
  state.counters["depth_max"] = static_cast<double>(depth_max);
  state.counters["growth_KiB"] = static_cast<double>(resident_bytes() - resident) / 1024;
  sink.close();
  loop.run(&Scope::join, &scope);
}

// ---- RB6
constexpr int kCompletions = 300;

void report(benchmark::State& state, std::vector<std::int64_t>& waits_ns) {
  std::sort(waits_ns.begin(), waits_ns.end());
  const auto at = [&](std::size_t percent) {
    return static_cast<double>(waits_ns[waits_ns.size() * percent / 100]) * 1e-3;
  };
  state.counters["p50_us"] = at(50);
  state.counters["p99_us"] = at(99);
  state.SetItemsProcessed(state.iterations() * kCompletions);
}

// A thread that completes what it is given 30-230 us later. It sleeps until then, and notes the
// time after that: its own waking is not measured. While it has nothing to complete, it stays awake
// (yield), so that it is asked at no cost.
class Completer {
 public:
  template <class Fn>
  explicit Completer(Fn complete)
      : thread_([this, complete] {
          std::mt19937 random(7);
          while (!stop_.load(std::memory_order_relaxed)) {
            if (asked_.exchange(false, std::memory_order_acquire)) {
              std::this_thread::sleep_for(std::chrono::microseconds(30 + random() % 200));
              completed_ns_ = now_ns();
              complete();
            } else {
              std::this_thread::yield();
            }
          }
        }) {}
  ~Completer() {
    stop_ = true;
    thread_.join();
  }
  void ask() { asked_.store(true, std::memory_order_release); }
  std::int64_t completed_ns() const { return completed_ns_; }

 private:
  std::atomic<bool> asked_{false};
  std::atomic<bool> stop_{false};
  std::int64_t completed_ns_ = 0;  // read after what complete() has released
  std::thread thread_;
};

void completion(benchmark::State& state, Spin spin) {
  EventLoop loop({.spin = spin});
  std::atomic<Completion<>*> waiting{nullptr};
  Completer completer([&waiting] { waiting.load(std::memory_order_acquire)->set_value(); });
  std::vector<std::int64_t> waits_ns;
  for (auto _ : state) {
    loop.run(
        [](std::atomic<Completion<>*>* slot, Completer* by,
           std::vector<std::int64_t>* out) -> Task<> {
          for (int i = 0; i < kCompletions; ++i) {
            Completion<> done(EventLoop::current());
            slot->store(&done, std::memory_order_release);
            by->ask();
            co_await done;
            out->push_back(now_ns() - by->completed_ns());
          }
        },
        &waiting, &completer, &waits_ns);
  }
  report(state, waits_ns);
}
void completion_blocking(benchmark::State& state) { completion(state, Spin::kNever); }
void completion_adaptive(benchmark::State& state) { completion(state, Spin::kAuto); }
void completion_spinning(benchmark::State& state) { completion(state, Spin::kAlways); }

// The kernel's time without a runtime.
void eventfd_epoll(benchmark::State& state) {
  const int event = eventfd(0, EFD_NONBLOCK);
  const int poll = epoll_create1(0);
  epoll_event interest{.events = EPOLLIN, .data = {}};
  epoll_ctl(poll, EPOLL_CTL_ADD, event, &interest);
  Completer completer([event] { (void)eventfd_write(event, 1); });
  std::vector<std::int64_t> waits_ns;
  for (auto _ : state) {
    for (int i = 0; i < kCompletions; ++i) {
      completer.ask();
      epoll_event got{};
      epoll_wait(poll, &got, 1, -1);
      eventfd_t value = 0;
      (void)eventfd_read(event, &value);
      waits_ns.push_back(now_ns() - completer.completed_ns());
    }
  }
  report(state, waits_ns);
  close(poll);
  close(event);
}

void flag_polled(benchmark::State& state) {
  std::atomic<bool> flag{false};
  Completer completer([&flag] { flag.store(true, std::memory_order_release); });
  std::vector<std::int64_t> waits_ns;
  for (auto _ : state) {
    for (int i = 0; i < kCompletions; ++i) {
      completer.ask();
      while (!flag.exchange(false, std::memory_order_acquire)) {
        cpu_relax();
      }
      waits_ns.push_back(now_ns() - completer.completed_ns());
    }
  }
  report(state, waits_ns);
}

// How much slower a thread computes that has nothing to do with it, while completions come in (1:
// not at all).
void neighbour(benchmark::State& state, Spin spin) {
  std::atomic<std::int64_t> work{0};
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      work.fetch_add(1, std::memory_order_relaxed);
    }
  });
  const auto rate = [&work](auto&& meanwhile) {
    const std::int64_t start_ns = now_ns();
    const std::int64_t before = work.load();
    meanwhile();
    return static_cast<double>(work.load() - before) / static_cast<double>(now_ns() - start_ns);
  };
  const double alone = rate([] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
  const double beside = rate([&] { completion(state, spin); });
  stop = true;
  busy.join();
  state.counters["slowdown"] = alone / beside;
}
void neighbour_of_blocking(benchmark::State& state) { neighbour(state, Spin::kNever); }
void neighbour_of_adaptive(benchmark::State& state) { neighbour(state, Spin::kAuto); }

}  // namespace

namespace bench {
void register_latency() {
  const auto add = [](const char* name, void (*function)(benchmark::State&)) {
    benchmark::RegisterBenchmark(name, function)->UseRealTime();
  };
  add("RB5 overload, 4 x/Tandem", &overload);
  add("RB6 completion, blocking/Tandem", &completion_blocking);
  add("RB6 completion, adaptive/Tandem", &completion_adaptive);
  add("RB6 completion, spinning/Tandem", &completion_spinning);
  add("RB6 completion, blocking/eventfd and epoll", &eventfd_epoll);
  add("RB6 completion, spinning/flag", &flag_polled);
  add("RB6 beside a busy thread, blocking/Tandem", &neighbour_of_blocking);
  add("RB6 beside a busy thread, adaptive/Tandem", &neighbour_of_adaptive);
}
}  // namespace bench
}  // namespace tandem
