// tests/support/chrome_events.hpp — the events that this process's tracer wrote, read by a small
// strict reader, and the rules that each file keeps.
#pragma once

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"
#include "runtime/trace.hpp"
#include "runtime/trace_file.hpp"

namespace tandem::test {

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
          expect(c == '"' || c == '\\' || c == 'n' || c == 't', "a known escape");
          c = c == 'n' ? '\n' : c == 't' ? '\t' : c;
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

inline std::vector<Json> events() {
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
inline void expect_nested(std::vector<Json>& all) {
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

// Begin and end of each async span match, and among those of one id each lies inside what was open.
inline void expect_async_matched(std::vector<Json>& all) {
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
inline int expect_arrows_forward(std::vector<Json>& all) {
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

}  // namespace tandem::test
