#include "runtime/trace.hpp"

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include <gtest/gtest.h>
#include <zlib.h>

#include "runtime/actor.hpp"
#include "runtime/compute_lane.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/trace_file.hpp"
#include "tests/support/chrome_events.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using namespace test;

TEST(Trace, OffRecordsNothing) {
  trace::clear();
  ASSERT_FALSE(trace::enabled());
  {
    TraceSpan span{"unseen"};
    trace::instant("unseen");
  }
  for (Json& event : events()) {
    EXPECT_NE(event.object["name"].text, "unseen");
  }
}

TEST(Trace, SpansNestPerThreadAndThreadsHaveNames) {
  const Recording recording;
  auto work = [] {
    TraceSpan outer{"outer"};
    for (int i = 0; i < 10; ++i) {
      TraceSpan inner{"inner"};
      trace::instant("tick");
    }
  };
  work();
  std::thread([&] {
    trace::set_thread_name("tracer");
    work();
  }).join();
  auto all = events();
  std::map<std::string, int> names;
  std::map<double, int> threads;
  bool named = false;
  for (Json& event : all) {
    ++names[event.object["name"].text];
    if (event.object["ph"].text == "X") {
      ++threads[event.object["tid"].number];
    }
    named = named || event.object["args"].object["name"].text == "tracer";
  }
  EXPECT_EQ(names["outer"], 2);
  EXPECT_EQ(names["inner"], 20);
  EXPECT_EQ(names["tick"], 20);
  EXPECT_EQ(threads.size(), 2U);
  EXPECT_TRUE(named);
  expect_nested(all);
}

TEST(Trace, EscapesNames) {
  const Recording recording;
  const std::string nasty = "quote \" backslash \\ newline \n tab \t bell \x07 end";
  {
    TraceSpan span{nasty};
  }
  bool found = false;
  for (Json& event : events()) {
    found = found || event.object["name"].text == nasty;
  }
  EXPECT_TRUE(found);
}

TEST(Trace, AFullRingKeepsTheNewest) {
  trace::clear();
  trace::enable({.records_per_thread = 64});
  std::thread([] {
    for (int i = 0; i < 1000; ++i) {
      trace::instant("old");
    }
    for (int i = 0; i < 64; ++i) {
      trace::instant("new");
    }
  }).join();
  trace::disable();
  int old_seen = 0;
  int new_seen = 0;
  for (Json& event : events()) {
    old_seen += event.object["name"].text == "old" ? 1 : 0;
    new_seen += event.object["name"].text == "new" ? 1 : 0;
  }
  EXPECT_EQ(old_seen, 0);
  EXPECT_EQ(new_seen, 64);
  trace::enable();
  trace::disable();
}

TEST(Trace, MayBeWrittenWhileOthersRecord) {
  const Recording recording;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop) {
      TraceSpan span{"busy"};
    }
  });
  for (int i = 0; i < 3; ++i) {
    auto all = events();
    for (Json& event : all) {
      EXPECT_FALSE(event.object["name"].text.empty());
    }
  }
  stop = true;
  writer.join();
}

TEST(Trace, EveryMessageIsAnArrowFromItsSendToItsHandler) {
  const Recording recording;
  EventLoop loop;
  Scope scope(loop);
  Pinger pinger;
  pinger.start(scope);
  loop.run(
      [](Pinger::AddressType a) -> Task<> {
        for (int i = 0; i < 5; ++i) {
          co_await a.send(Ping{i});
        }
        EXPECT_EQ(co_await a.ask(Sum{}), 5);
      },
      pinger.address());
  pinger.close();
  loop.run(&Scope::join, &scope);
  auto all = events();
  std::map<double, std::string> arrows;
  int spans = 0;
  int task_begins = 0;
  int task_ends = 0;
  for (Json& event : all) {
    const std::string kind = event.object["ph"].text;
    if (kind == "s" || kind == "f") {
      arrows[event.object["id"].number] += kind;
    }
    spans += kind == "X" && event.object["name"].text == "Ping" ? 1 : 0;
    task_begins += kind == "b" && event.object["name"].text == "pinger" ? 1 : 0;
    task_ends += kind == "e" && event.object["name"].text == "pinger" ? 1 : 0;
  }
  EXPECT_EQ(arrows.size(), 6U);
  for (const auto& [id, kinds] : arrows) {
    EXPECT_EQ(kinds, "sf");
  }
  EXPECT_EQ(spans, 5);
  EXPECT_EQ(task_begins, 1);
  EXPECT_EQ(task_ends, 1);
  expect_nested(all);
}

struct Work {
  using Reply = int;
  int value;
};
// Its handler awaits a compute lane and a pool, so that everything the runtime records is there.
struct Worker : Actor<Worker, Work> {
  Worker(ComputeLane& lane_in, CpuPool& pool_in) : Actor("worker"), lane(lane_in), pool(pool_in) {}
  Task<int> handle(Work work) {
    co_await pool.for_chunks(4, [](std::size_t) {}, {.name = "piece"});
    co_await sleep_for(10us);
    const int value = work.value;
    co_return co_await lane.run([value] { return value + 1; }, "add one");
  }
  ComputeLane& lane;
  CpuPool& pool;
};

TEST(Trace, ARunAcrossTwoLoopsIsWholeInTheFile) {
  const Recording recording;
  EventLoop loop;
  Scope scope(loop);
  std::optional<ComputeLane> lane(std::in_place, loop);
  CpuPool pool(loop, {.threads = 2});
  Worker worker(*lane, pool);
  worker.start(scope);
  std::thread asker([address = worker.address()] {
    EventLoop other({.name = "asker"});
    other.run(
        [](Address<Work> to) -> Task<> {
          Scope scope(EventLoop::current());
          for (int i = 0; i < 5; ++i) {
            scope.spawn(
                "question",
                [](Address<Work> a, int n) -> Task<> { EXPECT_EQ(co_await a.ask(Work{n}), n + 1); },
                to, i);
          }
          co_await scope.join();
        },
        address);
  });
  loop.run(
      [](std::thread* thread, CpuPool* helper) -> Task<> {
        co_await helper->run([thread] { thread->join(); }, "wait for the asker");
      },
      &asker, &pool);
  worker.close();
  loop.run(&Scope::join, &scope);
  const std::int64_t now = trace::now_ns();
  trace::track_span("compute", "matmul", now, now + 1000);
  trace::track_span("compute", "softmax", now + 1000, now + 3000);
  trace::track_span("copy", "to device", now + 500, now + 2500);

  lane.reset();  // its thread writes the last job's span once the job's awaiter goes on
  auto all = events();
  expect_nested(all);
  expect_async_matched(all);
  EXPECT_EQ(expect_arrows_forward(all), 5);
  std::map<std::string, int> seen;
  std::map<std::string, double> streams;
  for (Json& event : all) {
    ++seen[event.object["ph"].text + " " + event.object["name"].text];
    if (event.object["ph"].text == "M") {
      streams[event.object["args"].object["name"].text] = event.object["tid"].number;
    }
  }
  EXPECT_EQ(seen["b question"], 5);
  EXPECT_EQ(seen["b worker"], 1);
  EXPECT_EQ(seen["b Work"], 10);  // five awaits of an answer, five handlers
  EXPECT_EQ(seen["b sleep"], 5);
  EXPECT_EQ(seen["b cpu pool"], 6);
  EXPECT_EQ(seen["b compute lane"], 5);
  EXPECT_EQ(seen["X add one"], 5);
  EXPECT_EQ(seen["X end of the lane"], 1);
  for (const char* part : {"X piece [1/4]", "X piece [4/4]"}) {
    EXPECT_EQ(seen[part], 5) << part;
  }
  EXPECT_EQ(seen["X wait for the asker"], 1);
  EXPECT_GE(seen["X question"], 10);  // each runs until it asks, and again with the answer
  EXPECT_GE(seen["C worker"], 5);
  EXPECT_EQ(seen["X matmul"] + seen["X softmax"] + seen["X to device"], 3);
  EXPECT_TRUE(streams.contains("compute") && streams.contains("copy"));
}

TEST(Trace, RanksAreProcesses) {
  const Recording recording;
  trace::set_rank(3);
  trace::instant("of the process");
  std::thread([] {
    trace::set_thread_rank(5);
    trace::instant("of the thread");
  }).join();
  std::map<std::string, double> pids;
  for (Json& event : events()) {
    pids[event.object["ph"].text == "M" ? event.object["args"].object["name"].text
                                        : event.object["name"].text] = event.object["pid"].number;
  }
  EXPECT_EQ(pids["of the process"], 3);
  EXPECT_EQ(pids["rank 3"], 3);
  EXPECT_EQ(pids["of the thread"], 5);
  EXPECT_EQ(pids["rank 5"], 5);
  trace::set_rank(-1);
}

}  // namespace
}  // namespace tandem
