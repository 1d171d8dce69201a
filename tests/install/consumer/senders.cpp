// Senders of stdexec and tasks of ours in one program: the loop as a scheduler, a task as a sender,
// senders awaited, stops both ways. It prints "senders: ok" if all is as it should be.
#include <cstdio>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include <exec/single_thread_context.hpp>
#include <exec/when_any.hpp>
#include <stdexec/execution.hpp>
#include <tandem/runtime.hpp>
#include <tandem/runtime/interop/execution.hpp>

namespace {

using namespace std::chrono_literals;
using tandem::Task;

int faults = 0;

void expect(bool good, const char* text) {
  if (!good) {
    std::printf("wrong: %s\n", text);
    ++faults;
  }
}

Task<int> doubled(int value) {
  co_await tandem::sleep_for(1ms);
  co_return 2 * value;
}
Task<> fail() {
  co_await tandem::sleep_for(1ms);
  throw std::runtime_error("a task's own");
}
Task<std::string> wait_for_ever() {
  co_await tandem::sleep_for(24h, co_await tandem::current_stop_token());
  co_return "never";
}

// A loop on a thread of its own, for as long as the main task waits for `end`.
class LoopThread {
 public:
  LoopThread()
      : thread_([this] {
          loop.run([](tandem::Event* end) -> Task<> { co_await *end; }, &end_);
          loop.run(&tandem::Scope::join, &scope);
        }) {}
  ~LoopThread() {
    loop.post([this] { end_.set(); });
    thread_.join();
  }

  tandem::EventLoop loop;
  tandem::Scope scope{loop};

 private:
  tandem::Event end_;
  std::thread thread_;
};

// A program without a loop of ours waits for senders by sync_wait.
void compose_tasks_as_senders() {
  LoopThread there;
  const tandem::LoopScheduler scheduler(there.loop);
  auto [where] = stdexec::sync_wait(stdexec::schedule(scheduler) |
                                    stdexec::then([] { return std::this_thread::get_id(); }))
                     .value();
  expect(where != std::this_thread::get_id(), "work is scheduled on the loop's thread");

  auto both = stdexec::when_all(tandem::as_sender(there.scope, &doubled, 4),
                                tandem::as_sender(there.scope, &doubled, 5));
  auto [four, five] = stdexec::sync_wait(std::move(both)).value();
  expect(four == 8 && five == 10, "two tasks' values");

  const auto again = tandem::as_sender(there.scope, &doubled, 6);
  auto [first] = stdexec::sync_wait(again).value();
  auto [second] =
      stdexec::sync_wait(again | stdexec::then([](int value) { return value + 1; })).value();
  expect(first == 12 && second == 13, "a sender that is connected twice");

  std::string text;
  try {
    stdexec::sync_wait(tandem::as_sender(there.scope, &fail));
  } catch (const std::runtime_error& error) {
    text = error.what();
  }
  expect(text == "a task's own", "a task's exception");

  // The loser of a race is stopped by its receiver's token, and the race ends when it has ended.
  auto race = exec::when_any(
      tandem::as_sender(there.scope, &wait_for_ever) | stdexec::then([](std::string) { return 0; }),
      tandem::as_sender(there.scope, &doubled, 7));
  auto [winner] = stdexec::sync_wait(std::move(race)).value();
  expect(winner == 14, "a race that stops a task");
}

Task<> await_senders(exec::single_thread_context* context) {
  const auto home = std::this_thread::get_id();
  auto there = stdexec::schedule(context->get_scheduler()) |
               stdexec::then([] { return std::this_thread::get_id(); });
  expect(co_await tandem::await_sender(there) != home, "a sender's value from another thread");
  expect(std::this_thread::get_id() == home, "the task goes on where it was");

  const auto [one, two] = co_await tandem::await_sender(stdexec::just(1, std::string("two")));
  expect(one == 1 && two == "two", "a sender of several values");
  co_await tandem::await_sender(stdexec::just());

  int errors = 0;
  try {
    co_await tandem::await_sender(stdexec::just_error(std::make_error_code(std::errc::io_error)) |
                                  stdexec::then([] {}));
  } catch (const std::system_error& error) {
    errors += error.code() == std::errc::io_error ? 1 : 0;
  }
  try {
    co_await tandem::await_sender(stdexec::just_stopped() | stdexec::then([] { return 1; }));
  } catch (const tandem::Stopped&) {
    ++errors;
  }
  expect(errors == 2, "an error code, and a stop");
}

// A stop of the scope reaches the awaited sender: here a task of its own loop, made a sender.
Task<> await_what_does_not_end(tandem::Scope* scope, bool* stopped) {
  try {
    co_await tandem::await_sender(tandem::as_sender(*scope, &wait_for_ever),
                                  co_await tandem::current_stop_token());
  } catch (const tandem::Stopped&) {
    *stopped = true;
  }
}

void await_senders_in_tasks() {
  exec::single_thread_context context;
  tandem::EventLoop loop;
  loop.run(&await_senders, &context);

  tandem::Scope owner(loop);
  tandem::Scope waiting(loop);
  bool stopped = false;
  waiting.spawn("waits", &await_what_does_not_end, &owner, &stopped);
  loop.run(
      [](tandem::Scope* scope) -> Task<> {
        co_await tandem::sleep_for(5ms);
        scope->request_stop();
        co_await scope->join();
      },
      &waiting);
  expect(stopped, "a stop reaches the sender");
  loop.run(&tandem::Scope::join, &owner);
}

}  // namespace

int main() {
  compose_tasks_as_senders();
  await_senders_in_tasks();
  if (faults == 0) {
    std::puts("senders: ok");
  }
  return faults;
}
