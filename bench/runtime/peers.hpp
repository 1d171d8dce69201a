// bench/runtime/peers.hpp — the libraries that the runtime is compared with, in the same binary and
// the same run.
//
// A benchmark is called CASE/LIBRARY; what has the same CASE is compared in the closing table.
// Peers are registered by
// --compare. A library that was not found when this was built is replaced by a file that says so.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

namespace tandem::bench {

inline constexpr std::int64_t kRound = 100'000;   // operations per iteration of a benchmark
inline constexpr std::int64_t kFarRound = 5'000;  // the same across threads

inline constexpr std::int64_t kSends = 500'000;  // of each sender of RB2
// Credits of our mailbox in RB2; the mailboxes of the peers are unbounded. A sender's time slice
// fits in.
inline constexpr std::uint32_t kMailboxCredits = 16'384;

inline constexpr const char* kPingPong = "RB1a ping-pong, same loop";
inline constexpr const char* kPingPongFar = "RB1b ping-pong, two loops, blocking";
inline constexpr const char* kMailbox = "RB2 mailbox, senders";
inline constexpr const char* kCall = "RB3 call";
inline constexpr const char* kSwitch = "RB3 switch, local";
inline constexpr const char* kSpawn = "RB3 spawn and join";
inline constexpr const char* kAsk = "RB4 ask with a deadline, same loop";

/// RB2: threads that are there already, released by one atomic, call send(k) kSends times each;
/// receive() returns after the last message was received. Counted is the time from the release to
/// then.
template <class Send, class Receive>
void measure_senders(benchmark::State& state, int senders, const Send& send, Receive receive) {
  std::atomic<int> ready{0};
  std::atomic<bool> released{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < senders; ++i) {
    threads.emplace_back([&ready, &released, mine = send]() mutable {
      ready.fetch_add(1);
      while (!released.load(std::memory_order_acquire)) {
        std::this_thread::yield();
      }
      for (std::int64_t k = 0; k < kSends; ++k) {
        mine(k);
      }
    });
  }
  while (ready.load() < senders) {
    std::this_thread::yield();
  }
  const auto start = std::chrono::steady_clock::now();
  released.store(true, std::memory_order_release);
  receive();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  for (std::thread& thread : threads) {
    thread.join();
  }
  state.SetIterationTime(took.count());
}

/// Ours: RB1-RB4, and RB5-RB6.
void register_runtime();
void register_latency();
/// RB7.
void register_stops();

void register_asio();
/// False: this was built without CAF.
bool register_caf();

}  // namespace tandem::bench
