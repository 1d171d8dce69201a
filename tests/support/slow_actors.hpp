// tests/support/slow_actors.hpp — actors whose mailboxes are full for long, under every policy, in
// virtual time.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"

namespace tandem::test {

using namespace std::chrono_literals;

inline std::atomic<int> alive{0};  // messages that exist
struct Counted {
  Counted() noexcept { ++alive; }
  Counted(Counted&&) noexcept { ++alive; }
  Counted(const Counted&) noexcept { ++alive; }
  Counted& operator=(Counted&&) noexcept = default;
  Counted& operator=(const Counted&) noexcept = default;
  ~Counted() { --alive; }
};

struct Note {
  int value;
  int times = 1;
  Counted counted = {};
};
struct Read {
  using Reply = int;
  Counted counted = {};
};
struct Urgent {
  static constexpr bool kControl = true;
  int value;
};
struct Check {  // a control request
  using Reply = int;
  static constexpr bool kControl = true;
};

// Takes a virtual second for each note.
template <WhenFull kPolicy>
struct Slow : Actor<Slow<kPolicy>, Note, Read, Urgent, Check> {
  static constexpr WhenFull kWhenFull = kPolicy;
  using Base = Actor<Slow, Note, Read, Urgent, Check>;
  explicit Slow(MailboxOptions options) : Base("slow", options) {}
  Task<> handle(Note m) {
    notes.push_back(m.value);
    co_await sleep_for(1s);
  }
  Task<int> handle(Read) {
    notes.push_back(-1);
    co_await sleep_for(1s);
    co_return static_cast<int>(notes.size());
  }
  void handle(Urgent m) { notes.push_back(1000 + m.value); }
  int handle(Check) { return static_cast<int>(notes.size()); }
  std::vector<int> notes;
};
// Notes of the same tens are merged: the newest value, and how many they were.
struct Merging : Actor<Merging, Note, Read> {
  static constexpr WhenFull kWhenFull = WhenFull::kCoalesce;
  static bool coalesce(Note& waiting, Note&& newer) {
    if (waiting.value / 10 != newer.value / 10) {
      return false;
    }
    waiting.value = newer.value;
    waiting.times += newer.times;
    return true;
  }
  explicit Merging(MailboxOptions options) : Actor("merging", options) {}
  void handle(Note m) {
    notes.push_back(m.value);
    times += m.times;
  }
  int handle(Read) { return times; }
  std::vector<int> notes;
  int times = 0;
};

template <class A>
struct MailboxWorld {
  explicit MailboxWorld(MailboxOptions options) : actor(options) { actor.start(scope); }
  ~MailboxWorld() {
    actor.close();
    loop.run(&Scope::join, &scope);
    EXPECT_EQ(actor.address().depth(), 0U);
    EXPECT_EQ(loop.asks().pending(), 0U);
  }
  void run_for(Duration time) {
    loop.run([](Duration d) -> Task<> { co_await sleep_for(d); }, time);
  }
  // Calls `fn` on the loop: elsewhere a send would go through its inbox.
  template <class Fn>
  void inside(Fn fn) {
    loop.run(
        [](Fn* f) -> Task<> {
          (*f)();
          co_return;
        },
        &fn);
  }
  ManualClock clock;
  EventLoop loop{{.name = "test", .clock = &clock}};
  Scope scope{loop, "actors"};
  A actor;
};

template <class E, class Address, class M>
Task<> send_fails(Address address, M message, std::string* text) {
  try {
    co_await address.send(std::move(message));
  } catch (const E& error) {
    *text = error.what();
  }
}
template <class E, class Address>
Task<> ask_fails(Address address, std::string* text) {
  try {
    (void)co_await address.ask(Read{});
    *text = "answered";
  } catch (const E& error) {
    *text = error.what();
  }
}

}  // namespace tandem::test
