// Snippets of docs/runtime.md: several tasks at once, and tasks with a deadline.
// tools/docs_in_step.py keeps the page equal to this.
#include <chrono>
#include <string>
#include <utility>
#include <variant>

#include <gtest/gtest.h>
#include <tandem/runtime/channel.hpp>
#include <tandem/runtime/clock.hpp>
#include <tandem/runtime/event_loop.hpp>
#include <tandem/runtime/first_of.hpp>
#include <tandem/runtime/select.hpp>
#include <tandem/runtime/sleep.hpp>
#include <tandem/runtime/spawned.hpp>
#include <tandem/runtime/when_all.hpp>
#include <tandem/runtime/with_deadline.hpp>

namespace {

using namespace std::chrono_literals;
using tandem::Task;

// [compose]
Task<std::string> mirror(std::string name, tandem::Duration latency) {
  const tandem::StopToken stop = co_await tandem::current_stop_token();
  co_await tandem::sleep_for(latency, stop);  // a loser of first_of ends here
  co_return name;
}

Task<std::string> fetch_all() {
  auto [head, body] = co_await tandem::when_all(mirror("head", 10ms), mirror("body", 20ms));
  co_return head + " and " + body;  // after 20 ms
}

Task<std::string> fetch_quickest() {
  auto first = co_await tandem::first_of(mirror("near", 10ms), mirror("far", 20ms));
  co_return first.value;  // after 10 ms; the other one has been stopped, and has ended
}

Task<std::string> fetch_in_time() {
  try {
    co_return co_await tandem::with_deadline(15ms, &mirror, std::string("far"), 20ms);
  } catch (const tandem::DeadlineExceeded&) {
    co_return "nothing";
  }
}
// [/compose]

// [select]
Task<std::string> next_word(tandem::Channel<int>* numbers, tandem::Channel<std::string>* lines) {
  const tandem::StopToken stop = co_await tandem::current_stop_token();
  const auto got = co_await tandem::select(100ms, stop, *numbers, *lines);
  if (!got) {
    co_return "both are closed";
  }
  // got->value is a std::variant; a plain value where all channels carry the same
  co_return got->index == 0 ? std::to_string(std::get<0>(got->value)) : std::get<1>(got->value);
}
// [/select]

// [spawned]
Task<std::string> ask_beside(tandem::Scope* scope) {
  tandem::Spawned<std::string> answer =
      tandem::spawn_result(*scope, "mirror", &mirror, std::string("near"), 10ms);
  co_await tandem::sleep_for(5ms);     // meanwhile
  co_return co_await answer.result();  // its result, or its exception
}
// [/spawned]

TEST(DocsCompose, AllFirstAndInTime) {
  const auto run = [](auto factory) {
    tandem::ManualClock clock;
    tandem::EventLoop loop({.name = "docs", .clock = &clock});
    std::string text = loop.run(factory);
    return std::pair(std::move(text), clock.now().time_since_epoch());
  };
  EXPECT_EQ(run(&fetch_all), std::pair(std::string("head and body"), tandem::Duration(20ms)));
  EXPECT_EQ(run(&fetch_quickest), std::pair(std::string("near"), tandem::Duration(10ms)));
  EXPECT_EQ(run(&fetch_in_time), std::pair(std::string("nothing"), tandem::Duration(15ms)));
}

TEST(DocsCompose, OfTwoChannelsAndBeside) {
  tandem::ManualClock clock;
  tandem::EventLoop loop({.name = "docs", .clock = &clock});
  tandem::Channel<int> numbers(1);
  tandem::Channel<std::string> lines(1);
  ASSERT_TRUE(lines.try_send("line"));
  EXPECT_EQ(loop.run(&next_word, &numbers, &lines), "line");
  ASSERT_TRUE(numbers.try_send(7));
  EXPECT_EQ(loop.run(&next_word, &numbers, &lines), "7");
  EXPECT_THROW(loop.run(&next_word, &numbers, &lines), tandem::DeadlineExceeded);
  numbers.close();
  lines.close();
  EXPECT_EQ(loop.run(&next_word, &numbers, &lines), "both are closed");
  tandem::Scope scope(loop);
  EXPECT_EQ(loop.run(&ask_beside, &scope), "near");
  loop.run(&tandem::Scope::join, &scope);
}

}  // namespace
