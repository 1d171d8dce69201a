#include "runtime/trace.hpp"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include <gtest/gtest.h>
#include <zlib.h>

#include "runtime/actor.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

// ---- a small strict JSON reader: objects, arrays, strings, numbers -------------------------------
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
