#include "runtime/trace.hpp"

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include <gtest/gtest.h>
#include <zlib.h>

#include "runtime/actor.hpp"
#include "runtime/compute_lane.hpp"
#include "runtime/cpu_pool.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

// ---- a small strict JSON reader: objects, arrays, strings, numbers
struct Json {
  std::map<std::string, Json> object;
  std::vector<Json> array;
  std::string text;
  double number = 0;
};

class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}
  Json document() {
    Json value = read();
    skip();
    expect(at_ == text_.size(), "nothing after the value");
    return value;
  }

 private:
  void expect(bool condition, const char* what) const {
    if (!condition) {
      throw std::runtime_error("not JSON at byte " + std::to_string(at_) + ": " + what);
    }
  }
  void skip() {
    while (at_ < text_.size() && std::string(" \n\t\r").find(text_[at_]) != std::string::npos) {
      ++at_;
    }
  }
  char next() {
    expect(at_ < text_.size(), "more text");
    return text_[at_++];
  }
  bool take(char c) {
    skip();
    if (at_ < text_.size() && text_[at_] == c) {
      ++at_;
      return true;
    }
    return false;
  }
  std::string string() {
    expect(next() == '"', "a string");
    std::string out;
    for (char c = next(); c != '"'; c = next()) {
      expect(static_cast<unsigned char>(c) >= 0x20, "control characters escaped");
      if (c == '\\') {
        c = next();
        if (c == 'u') {
          c = static_cast<char>(std::stoi(text_.substr(at_, 4), nullptr, 16));
          at_ += 4;
        } else {
          expect(c == '"' || c == '\\', "a known escape");
        }
      }
      out += c;
    }
    return out;
  }
  Json read() {
    Json value;
    skip();
    expect(at_ < text_.size(), "a value");
    if (take('{')) {
      while (!take('}')) {
        expect(value.object.empty() || take(','), "a comma");
        skip();
        std::string key = string();
        expect(take(':'), "a colon");
        value.object[std::move(key)] = read();
      }
    } else if (take('[')) {
      while (!take(']')) {
        expect(value.array.empty() || take(','), "a comma");
        value.array.push_back(read());
      }
    } else if (text_[at_] == '"') {
      value.text = string();
    } else {
      std::size_t used = 0;
      value.number = std::stod(text_.substr(at_, 40), &used);
      at_ += used;
    }
    return value;
  }

  const std::string& text_;
  std::size_t at_ = 0;
};

std::vector<Json> events() {
  return Reader(trace::chrome_json()).document().object["traceEvents"].array;
}

struct Recording {
  Recording() {
    trace::clear();
    trace::enable();
  }
  ~Recording() { trace::disable(); }
};

// Every two spans of a thread are apart, or one lies in the other.
void expect_nested(std::vector<Json>& all) {
  std::map<double, std::vector<std::pair<double, double>>> spans;
  for (Json& event : all) {
    if (event.object["ph"].text == "X") {
      const double start = event.object["ts"].number;
      spans[event.object["tid"].number].emplace_back(start, start + event.object["dur"].number);
    }
  }
  ASSERT_FALSE(spans.empty());
  for (auto& [thread, list] : spans) {
    std::sort(list.begin(), list.end(), [](auto a, auto b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    std::vector<double> open;
    for (const auto& [start, end] : list) {
      while (!open.empty() && open.back() <= start + 1e-4) {
        open.pop_back();
      }
      EXPECT_TRUE(open.empty() || end <= open.back() + 1e-3) << "spans overlap on a thread";
      open.push_back(end);
    }
  }
}

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
  trace::enable(64);
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

struct Ping {
  int left;
};
struct Sum {
  using Reply = int;
};
struct Pinger : Actor<Pinger, Ping, Sum> {
  Pinger() : Actor("pinger") {}
  void handle(Ping) { ++count; }
  Task<int> handle(Sum) {
    co_await yield();
    co_return count;
  }
  int count = 0;
};

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

// Begin and end of each async span match, and among those of one id each lies inside what was open.
void expect_async_matched(std::vector<Json>& all) {
  struct Edge {
    bool begin;
    std::string name;
  };
  std::map<double, std::multimap<double, Edge>> by_id;  // by time, equal ones as they came
  for (Json& event : all) {
    const std::string& kind = event.object["ph"].text;
    if (kind == "b" || kind == "e") {
      by_id[event.object["id"].number].insert(
          {event.object["ts"].number, {kind == "b", event.object["name"].text}});
    }
  }
  for (auto& [id, edges] : by_id) {
    std::vector<std::string> open;
    for (const auto& [time, edge] : edges) {
      if (edge.begin) {
        open.push_back(edge.name);
      } else {
        ASSERT_FALSE(open.empty()) << edge.name << " ends and never began";
        EXPECT_EQ(open.back(), edge.name);
        open.pop_back();
      }
    }
    EXPECT_TRUE(open.empty()) << open.back() << " never ends";
  }
}

// Each arrow has one tail and one head, and points forward in time; returns how many go from one
// thread to another.
int expect_arrows_forward(std::vector<Json>& all) {
  std::map<double, std::vector<Json*>> tails;
  std::map<double, std::vector<Json*>> heads;
  for (Json& event : all) {
    const std::string& kind = event.object["ph"].text;
    if (kind == "s" || kind == "f") {
      (kind == "s" ? tails : heads)[event.object["id"].number].push_back(&event);
    }
  }
  EXPECT_EQ(tails.size(), heads.size());
  int between_threads = 0;
  for (auto& [id, tail] : tails) {
    if (tail.size() != 1 || heads[id].size() != 1) {
      ADD_FAILURE() << "arrow " << id << " has " << tail.size() << " tails and " << heads[id].size()
                    << " heads";
      continue;
    }
    EXPECT_LE(tail[0]->object["ts"].number, heads[id][0]->object["ts"].number);
    between_threads += tail[0]->object["tid"].number != heads[id][0]->object["tid"].number ? 1 : 0;
  }
  return between_threads;
}

struct Work {
  using Reply = int;
  int value;
};
// Its handler awaits a compute lane and a pool, so that everything the runtime records is there.
struct Worker : Actor<Worker, Work> {
  Worker(ComputeLane& lane_in, CpuPool& pool_in) : Actor("worker"), lane(lane_in), pool(pool_in) {}
  Task<int> handle(Work work) {
    co_await pool.for_chunks(4, [](std::size_t) {});
    co_await sleep_for(10us);
    const int value = work.value;
    co_return co_await lane.run([value] { return value + 1; });
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
  loop.run([](std::thread* thread,
              CpuPool* helper) -> Task<> { co_await helper->run([thread] { thread->join(); }); },
           &asker, &pool);
  worker.close();
  loop.run(&Scope::join, &scope);
  const std::int64_t now = trace::now_ns();
  trace::device_span("compute", "matmul", now, now + 1000);
  trace::device_span("compute", "softmax", now + 1000, now + 3000);
  trace::device_span("copy", "to device", now + 500, now + 2500);

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
  EXPECT_EQ(seen["X lane job"], 6);  // and the one that ends the lane
  EXPECT_EQ(seen["X chunk"], 21);
  EXPECT_GE(seen["X question"], 10);  // each runs until it asks, and again with the answer
  EXPECT_GE(seen["C worker"], 5);
  EXPECT_EQ(seen["X matmul"] + seen["X softmax"] + seen["X to device"], 3);
  EXPECT_TRUE(streams.contains("stream compute") && streams.contains("stream copy"));
}

TEST(Trace, RanksAreProcesses) {
  const Recording recording;
  trace::set_rank(3);
  trace::instant("of the process");
  std::thread([] {
    trace::set_thread_rank(5);
    trace::instant("of the thread");
  }).join();
  trace::set_rank(-1);
  std::map<std::string, double> pids;
  for (Json& event : events()) {
    pids[event.object["ph"].text == "M" ? event.object["args"].object["name"].text
                                        : event.object["name"].text] = event.object["pid"].number;
  }
  EXPECT_EQ(pids["of the process"], 3);
  EXPECT_EQ(pids["rank 3"], 3);
  EXPECT_EQ(pids["of the thread"], 5);
  EXPECT_EQ(pids["rank 5"], 5);
}

TEST(Trace, WritesPlainAndGzip) {
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

TEST(Trace, AnUnwritablePathIsAnError) {
  EXPECT_THROW(trace::write_chrome_json("/nowhere/trace.json"), Error);
  EXPECT_THROW(trace::write_chrome_json("/nowhere/trace.json.gz"), Error);
  EXPECT_THROW(trace::write_chrome_json("/dev/full"), Error);
}

}  // namespace
}  // namespace tandem
