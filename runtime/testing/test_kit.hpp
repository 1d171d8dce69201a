// runtime/testing/test_kit.hpp — a loop in a test's hand: no threads, no real time; every message
// waits until the test delivers, drops or reorders it, and timers fire when the test advances the
// clock.
//
//   TestKit kit;
//   auto& book = kit.make<Book>("book");                             // an actor that the kit owns
//   kit.spawn("writer", &write_two, book.address());
//   kit.expect<Note>().from("writer").to(book).with([](const Note& n) { return n.value == 1; });
//   auto sum = kit.start("asker", &ask_sum, book.address());  // a task whose result is wanted
//   kit.expect<Sum>().to(book);  // an ask is a message; its answer comes by itself
//   EXPECT_EQ(sum.get(), 1);
//
//   expect     the next message for that target (without to(): of all) is an M, by that sender,
//              that fits: it is delivered
//   allow      the same, if it is so: `if (kit.allow<Note>().to(book)) ...`
//   disallow   no such message waits anywhere
//   prepone, postpone   the first such message becomes its target's next, or last
//   drop       the first such message is returned: its credit comes back, an asker gets ActorClosed
// A statement is complete at its semicolon, and everything that can run then has run: the tasks sit
// in their awaits, the messages they sent wait. A statement that does not hold calls the failure
// handler, with its line and what waits instead; without a handler (gtest.hpp has one) it throws
// TestKit::Unexpected.
// Thread rule: one thread, outside of tasks.
// Ownership: actors of make() die with the kit; others are started in scope() and die after
// finish().
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/actor.hpp"
#include "runtime/message_tap.hpp"
#include "runtime/testing/expectation.hpp"

namespace tandem {

class TestKit : private MessageTap {
 public:
  using Where = std::source_location;
  using FailureHandler = std::function<void(const std::string& text, const Where& where)>;

  class Unexpected : public Error {
   public:
    explicit Unexpected(const std::string& text) : Error(ExitCode::kFailure, text) {}
  };

  TestKit();
  ~TestKit();
  TestKit(const TestKit&) = delete;
  TestKit& operator=(const TestKit&) = delete;

  void set_failure_handler(FailureHandler handler) { on_failure_ = std::move(handler); }
  /// Ends everything: drops what waits, stops the scope and runs until it is empty. A task that
  /// does not end is a failure. Tasks that failed are not counted as that (see failures()). The
  /// destructor does it, too.
  void finish(Where where = Where::current());

  // ---- the system under test
  template <class A, class... Args>
  A& make(Args&&... args) {
    auto owned = std::make_shared<A>(std::forward<Args>(args)...);
    A& actor = *owned;
    actors_.push_back(std::move(owned));
    actor.start(scope_);
    settle();
    return actor;
  }
  template <class Factory, class... Args>
    requires TaskFactory<Factory, Args...>
  void spawn(Name name, Factory factory, Args... args) {
    scope_.spawn(name, std::move(factory), std::move(args)...);
    settle();
  }
  template <class T>
  class Result;
  /// Does what spawn() does, for a task whose value or exception the test wants.
  template <class Factory, class... Args>
    requires TaskFactory<Factory, Args...>
  [[nodiscard]] Result<TaskResult<Factory, Args...>> start(Name name, Factory factory,
                                                           Args... args);
  [[nodiscard]] Scope& scope() noexcept { return scope_; }
  [[nodiscard]] EventLoop& loop() noexcept { return loop_; }
  [[nodiscard]] const std::vector<TaskFailure>& failures() const noexcept {
    return scope_.failures();
  }

  // ---- messages
  template <class M>
  [[nodiscard("complete at the semicolon")]] Expectation<M, Verb::kAllow> allow(
      Where where = Where::current()) {
    return {*this, where};
  }
  template <class M>
  Expectation<M, Verb::kExpect> expect(Where where = Where::current()) {
    return {*this, where};
  }
  template <class M>
  Expectation<M, Verb::kDisallow> disallow(Where where = Where::current()) {
    return {*this, where};
  }
  template <class M>
  Expectation<M, Verb::kPrepone> prepone(Where where = Where::current()) {
    return {*this, where};
  }
  template <class M>
  Expectation<M, Verb::kPostpone> postpone(Where where = Where::current()) {
    return {*this, where};
  }
  template <class M>
  Expectation<M, Verb::kDrop> drop(Where where = Where::current()) {
    return {*this, where};
  }
  /// Puts all waiting messages into an order that `seed` decides (also those of one sender to one
  /// target).
  void reorder(std::uint64_t seed);
  /// Delivers the message that waits longest; returns false if none waits.
  bool run_one();
  /// Calls run_one() until no message waits, and returns how many there were; more than `most` are
  /// a failure.
  std::size_t run_until_idle(std::size_t most = 10'000, Where where = Where::current());
  [[nodiscard]] std::size_t pending_count() const noexcept { return held_.size(); }
  /// One line for each message that waits, the oldest first: "  1. Note from writer to book".
  [[nodiscard]] std::string pending() const;

  // ---- time
  /// Moves the clock by `by`; timers that come due meanwhile fire in their order, each at its own
  /// time.
  void advance(Duration by, Where where = Where::current());
  [[nodiscard]] TimePoint now() const noexcept { return clock_.now(); }
  /// Runs everything that can run without a message and without time. The verbs do this themselves.
  void settle(Where where = Where::current());

 private:
  template <class M, Verb kVerb>
  friend class Expectation;
  static constexpr std::size_t kMostTurns = 1'000'000;

  void on_message(TappedMessage envelope) noexcept override {
    held_.push_back(std::move(envelope));
  }
  /// Returns whether the verb's condition holds; carries the verb out if so.
  bool carry_out(Verb verb, const MessagePattern& pattern, const Where& where);
  std::size_t first_match(const MessagePattern& pattern) const;
  std::size_t first_for(const MessagePattern& pattern) const;
  TappedMessage take(std::size_t index);
  void fail(const std::string& what, const Where& where);
  static Task<std::size_t> until_quiet(std::size_t most);

  ManualClock clock_{ManualClock::Idle::kWait};
  EventLoop loop_{{.name = "test kit", .clock = &clock_, .stall_limit = Duration::zero()}};
  Scope scope_{loop_, "test"};
  std::deque<TappedMessage> held_;
  std::vector<std::shared_ptr<void>> actors_;
  FailureHandler on_failure_;
};

/// The result of a task that start() began.
template <class T>
class TestKit::Result {
 public:
  [[nodiscard]] bool ready() const noexcept { return !outcome_->empty(); }
  /// Returns the task's value or rethrows its exception. If the task has not ended, that is a
  /// failure, and this throws in any case.
  T get(Where where = Where::current()) {
    if (!ready()) {
      const std::string text = "the task has not ended; it needs a message, a timer or an event";
      kit_->fail(text, where);
      throw Unexpected("[test kit] " + text);
    }
    return outcome_->take();
  }

 private:
  friend class TestKit;
  explicit Result(TestKit& kit) : kit_(&kit), outcome_(std::make_shared<Outcome<T>>()) {}

  template <class Factory, class... Args>
  static Task<> run(std::shared_ptr<Outcome<T>> outcome, detail::Held<Factory> factory,
                    Args... args) {
    try {
      if constexpr (std::is_void_v<T>) {
        co_await std::invoke(factory, std::move(args)...);
        outcome->set_value();
      } else {
        outcome->set_value(co_await std::invoke(factory, std::move(args)...));
      }
    } catch (...) {
      outcome->set_error(std::current_exception());
    }
  }

  TestKit* kit_;
  std::shared_ptr<Outcome<T>> outcome_;
};

template <class Factory, class... Args>
  requires TaskFactory<Factory, Args...>
TestKit::Result<TaskResult<Factory, Args...>> TestKit::start(Name name, Factory factory,
                                                             Args... args) {
  using T = TaskResult<Factory, Args...>;
  Result<T> result(*this);
  scope_.spawn(name, &Result<T>::template run<Factory, Args...>, result.outcome_,
               detail::Held<Factory>(factory), std::move(args)...);
  settle();
  return result;
}

template <class M, Verb kVerb>
bool Expectation<M, kVerb>::carry_out() const {
  done_ = true;
  return result_ = kit_.carry_out(kVerb, pattern_, where_);
}

}  // namespace tandem
