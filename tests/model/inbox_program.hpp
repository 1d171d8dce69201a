// tests/model/inbox_program.hpp — the runtime's inbox protocols as small programs for the model
// checker.
//
// The inbox, the sleep, the wakes pending and the wake counter are the runtime's own templates; a
// test puts a flawed one in the place of one of them.
#pragma once

#include <memory>
#include <new>
#include <type_traits>

#include "runtime/detail/mpsc_inbox.hpp"
#include "runtime/util/wake_counter.hpp"
#include "tests/model/memory.hpp"

namespace tandem::model {

/// A message, or a completion: its payload is written before the push and belongs to the consumer
/// afterwards.
struct Node {
  Plain<Node*> next;
  Plain<int> payload;
};

/// Asio's io_context as the loop uses it: stop() lasts until restart(), run_one() returns once
/// stopped. Its mutex orders.
struct Reactor {
  void restart() { (void)stopped.exchange(0, std::memory_order_acq_rel); }
  void stop() {
    (void)stopped.exchange(1, std::memory_order_acq_rel);
    stopped.wake_one();
  }
  void run_one() {
    stopped.wait_while(0);
    (void)stopped.fetch_add(0, std::memory_order_acq_rel);
  }
  Atomic<int> stopped{0};
};

/// The same with an alarm, which ends one sleep: the loop looks again then, and sleeps again.
struct AlarmedReactor : Reactor {
  void run_one() {
    if (alarm->exchange(0, std::memory_order_relaxed) == 0) {
      Reactor::run_one();
    }
  }
  Atomic<int>* alarm = nullptr;  // the program's: it outlives the loop
};

struct Sleep {
  template <class Inbox, class Queue>
  static bool sleep(Inbox& inbox, Queue& queue, auto& reactor) {
    return sleep_until_woken(inbox, queue, reactor);
  }
};

/// The nodes that the consumer got, by producer: payloads are 100 * producer + sequence, from 1.
struct Received {
  void add(Node& node) {
    const int payload = node.payload;
    node.payload = -1;  // the consumer's now: a producer that still touches it races
    node.next = nullptr;
    const int producer = payload / 100;
    check(producer >= 1 && producer <= 2, "a node is taken that no producer pushed, or twice");
    check(payload % 100 == last[producer] + 1, "one producer's nodes arrive in order, each once");
    last[producer] = payload % 100;
    ++count;
  }
  int last[3] = {};
  int count = 0;
};

/// Two threads push kFirst and kSecond nodes into a loop, which takes them, sleeps in its reactor,
/// and dies at the end. With an AlarmedReactor a third one sets its alarm.
template <template <class, class> class Inbox, class Atomics, class SleepRule, int kFirst,
          int kSecond, class ReactorType = Reactor>
struct LoopProgram {
  static constexpr bool kAlarmed = std::is_same_v<ReactorType, AlarmedReactor>;
  struct Loop {
    Inbox<Atomics, Node> inbox;
    ReactorType reactor;
    BasicPendingWakeups<Atomics> wakes;
  };

  static void build(Execution& run) {
    auto state = std::make_shared<LoopProgram>();
    for (int producer = 1; producer <= (kSecond > 0 ? 2 : 1); ++producer) {
      run.thread([state, producer] {
        for (int i = 1; i <= (producer == 1 ? kFirst : kSecond); ++i) {
          Node& node = state->nodes[producer - 1][i - 1];
          node.payload = 100 * producer + i;
          if (state->loop().inbox.push(node)) {
            state->loop().reactor.stop();
            state->loop().wakes.paid();
          }
        }
      });
    }
    if constexpr (kAlarmed) {
      state->loop().reactor.alarm = &state->alarm;
      run.thread([state] { state->alarm.store(1, std::memory_order_relaxed); });
    }
    run.thread([state] { state->consume(); });
    run.at_end(
        [state] { check(state->received.count == kFirst + kSecond, "every node is taken"); });
  }

  void consume() {
    OpQueue<Node> queue;
    while (received.count < kFirst + kSecond) {
      if (!loop().inbox.take_all(queue) && SleepRule::sleep(loop().inbox, queue, loop().reactor)) {
        loop().wakes.owe();
      }
      while (Node* node = queue.pop()) {
        received.add(*node);
      }
    }
    while (!loop().wakes.settled()) {
      pause();
    }
    alive = false;
    loop().~Loop();
  }

  LoopProgram() { new (storage) Loop; }
  ~LoopProgram() {
    if (alive) {
      loop().~Loop();
    }
  }
  Loop& loop() { return *std::launder(reinterpret_cast<Loop*>(storage)); }

  Atomic<int> alarm{0};
  alignas(Loop) char storage[sizeof(Loop)];
  bool alive = true;
  Node nodes[2][kFirst];
  Received received;
};

struct SleepOnWakes {
  template <class Inbox, class Queue, class Wakes>
  static bool sleep(Inbox& inbox, Queue& queue, Wakes& wakes, Atomic<int>* alarm) {
    return sleep_until_woken(inbox, queue, wakes, alarm);
  }
};

/// The same with a compute lane's consumer: it sleeps on a wake counter. With an alarm there is one
/// producer.
template <template <class, class> class Inbox, template <class> class Wakes, class Atomics,
          class SleepRule, int kPushes, bool kAlarmed = false>
struct LaneProgram {
  static constexpr int kProducers = kAlarmed ? 1 : 2;

  static void build(Execution& run) {
    auto state = std::make_shared<LaneProgram>();
    for (int producer = 1; producer <= kProducers; ++producer) {
      run.thread([state, producer] {
        for (int i = 1; i <= kPushes; ++i) {
          Node& node = state->nodes[producer - 1][i - 1];
          node.payload = 100 * producer + i;
          if (state->inbox.push(node)) {
            state->wakes.wake();
          }
        }
      });
    }
    if constexpr (kAlarmed) {
      run.thread([state] { state->alarm.store(1, std::memory_order_relaxed); });
    }
    run.thread([state] {
      OpQueue<Node> queue;
      while (state->received.count < kProducers * kPushes) {
        if (!state->inbox.take_all(queue)) {
          const bool woken = SleepRule::sleep(state->inbox, queue, state->wakes, &state->alarm);
          check(!woken || !queue.empty(), "a wake ends the sleep that its push ended");
        }
        while (Node* node = queue.pop()) {
          state->received.add(*node);
        }
      }
    });
    run.at_end(
        [state] { check(state->received.count == kProducers * kPushes, "every node is taken"); });
  }

  Inbox<Atomics, Node> inbox;
  Wakes<Atomics> wakes;
  Atomic<int> alarm{0};
  Node nodes[2][kPushes];
  Received received;
};

}  // namespace tandem::model
