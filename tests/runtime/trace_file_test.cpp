// The window of a file, the steps it is of, and the parts of other processes.
#include "runtime/trace_file.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "runtime/sleep.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/chrome_events.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using namespace test;

TEST(TraceFile, WhatARingDroppedIsInTheFileOfNoThread) {
  trace::clear();
  trace::enable({.records_per_thread = 64});
  const auto steps = [](int first, int last, int spans_of_a_step) {
    for (int step = first; step <= last; ++step) {
      trace::begin_step(step);
      for (int i = 0; i < spans_of_a_step; ++i) {
        TraceSpan span{"busy"};
      }
    }
  };
  std::thread([] { trace::instant("before"); }).join();
  TraceSpan* long_one = new TraceSpan("over the edge");
  std::thread(steps, 1, 10, 15).join();  // 160 records: steps 7 to 10 fit
  delete long_one;
  trace::disable();
  const trace::Kept kept = trace::kept();
  EXPECT_TRUE(kept.dropped);
  ASSERT_EQ(kept.steps.size(), 4U);
  EXPECT_EQ(kept.steps.front().number, 7);
  EXPECT_EQ(kept.steps.back().number, 10);
  const double begin = static_cast<double>(kept.steps.front().at_ns) / 1000;
  double first_step = 0;
  int spans = 0;
  for (Json& event : events()) {
    const std::string name = event.object["name"].text;
    EXPECT_NE(name, "before");
    if (event.object["ph"].text != "M") {
      EXPECT_GE(event.object["ts"].number, begin - 1e-3) << name;
    }
    if (name == "step 7") {
      first_step = event.object["args"].object["step"].number;
    }
    if (name == "over the edge") {
      EXPECT_NEAR(event.object["ts"].number, begin, 1e-3) << "what began before is cut";
    }
    spans += name == "busy" ? 1 : 0;
  }
  EXPECT_EQ(first_step, 7);
  EXPECT_EQ(spans, 60);
  trace::enable();
  trace::disable();
}

TEST(TraceFile, OfSomeStepsNothingElseIsRecorded) {
  trace::clear();
  trace::enable({.first_step = 12, .last_step = 13});
  EXPECT_FALSE(trace::enabled());
  EventLoop loop;
  Scope scope(loop);
  Pinger pinger;  // begins before the window and ends behind it
  pinger.start(scope);
  for (int step = 10; step <= 15; ++step) {
    trace::begin_step(step);
    EXPECT_EQ(trace::enabled(), step == 12 || step == 13);
    trace::instant(fmt::format("in {}", step));
    loop.run(
        [](Pinger::AddressType a, Scope* spawns) -> Task<> {
          co_await a.send(Ping{1});
          spawns->spawn("nap", []() -> Task<> { co_await sleep_for(1ms); });
        },
        pinger.address(), &scope);
  }
  trace::disable();
  pinger.close();
  loop.run(&Scope::join, &scope);
  auto all = events();
  expect_async_matched(all);
  expect_arrows_forward(all);
  std::map<std::string, int> seen;
  for (Json& event : all) {
    ++seen[event.object["ph"].text + " " + event.object["name"].text];
  }
  EXPECT_EQ(seen["i step 12"] + seen["i step 13"], 2);
  EXPECT_EQ(seen["i in 12"] + seen["i in 13"], 2);
  EXPECT_EQ(seen["i in 11"] + seen["i in 14"] + seen["i step 14"], 0);
  EXPECT_EQ(seen["b nap"], 2);  // they end outside, and are cut
  EXPECT_EQ(seen["e nap"], 2);
  const trace::Kept kept = trace::kept();
  EXPECT_FALSE(kept.dropped);
  EXPECT_EQ(kept.steps.size(), 2U);
}

TEST(TraceFile, PartsOfOtherProcessesAreMerged) {
  const std::string folder = ::testing::TempDir();
  const auto record = [](int rank, int peer) {
    trace::clear();
    trace::enable();
    trace::set_rank(rank);
    const std::int64_t now = trace::now_ns();
    trace::track_span("gathers", "all-gather", now, now + 1000);
    trace::rank_arrow("gathers", /*leaves=*/true, now, 100 + static_cast<std::uint64_t>(rank));
    trace::rank_arrow("gathers", /*leaves=*/false, now + 999,
                      100 + static_cast<std::uint64_t>(peer));
    trace::disable();
  };
  record(0, 2);  // rank 2 is not among them
  const trace::Kept first = trace::kept();
  trace::write_part(folder + "rank0.part", {0, INT64_MAX});
  record(1, 0);
  trace::write_chrome_json(folder + "merged.json",
                           {.window = {first.since_ns, trace::now_ns() + 1000},
                            .other_data = R"({"model": "m"})",
                            .parts = {folder + "rank0.part"}});
  trace::set_rank(-1);
  std::ifstream file(folder + "merged.json");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  Json document = Reader(text).document();
  EXPECT_EQ(document.object["otherData"].object["model"].text, "m");
  std::vector<Json> all = document.object["traceEvents"].array;
  EXPECT_EQ(expect_arrows_forward(all), 1) << "the arrow of which both ends are there";
  std::set<double> processes;
  for (Json& event : all) {
    processes.insert(event.object["pid"].number);
  }
  EXPECT_EQ(processes, (std::set<double>{0, 1}));

  std::ofstream(folder + "rank0.part") << "no gzip, and no line end";
  EXPECT_THROW(trace::write_chrome_json(folder + "merged.json", {.parts = {folder + "rank0.part"}}),
               Error);
  std::filesystem::remove(folder + "rank0.part");
  EXPECT_THROW(trace::write_chrome_json(folder + "merged.json", {.parts = {folder + "rank0.part"}}),
               Error);
  std::filesystem::remove(folder + "merged.json");
}

TEST(TraceFile, WritesPlainAndGzip) {
  const Recording recording;
  {
    TraceSpan span{"written"};
  }
  const std::string plain = ::testing::TempDir() + "tandem_trace.json";
  trace::write_chrome_json(plain);
  trace::write_chrome_json(plain + ".gz");
  std::ifstream file(plain);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NO_THROW((void)Reader(text).document());
  EXPECT_NE(text.find("written"), std::string::npos);
  std::string unpacked(text.size() + 1, '\0');
  gzFile packed = gzopen((plain + ".gz").c_str(), "rb");
  ASSERT_NE(packed, nullptr);
  const int bytes = gzread(packed, unpacked.data(), static_cast<unsigned>(unpacked.size()));
  gzclose(packed);
  ASSERT_GT(bytes, 0);
  unpacked.resize(static_cast<std::size_t>(bytes));
  EXPECT_EQ(unpacked, text);
  std::filesystem::remove(plain);
  std::filesystem::remove(plain + ".gz");
}

TEST(TraceFile, AnUnwritablePathIsAnError) {
  EXPECT_THROW(trace::write_chrome_json("/nowhere/trace.json"), Error);
  EXPECT_THROW(trace::write_chrome_json("/nowhere/trace.json.gz"), Error);
  EXPECT_THROW(trace::write_chrome_json("/dev/full"), Error);
}

}  // namespace
}  // namespace tandem
