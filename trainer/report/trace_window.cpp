#include "trainer/report/trace_window.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <simdjson.h>

#include "runtime/system/bounded_lines.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

namespace dom = simdjson::dom;

constexpr std::size_t kSteps = 3;
constexpr std::size_t kMostSpans = 6000;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;  // unpacked
constexpr std::size_t kMostSeen = std::size_t{1} << 22;       // spans of the window
constexpr std::size_t kMostThreads = std::size_t{1} << 16;
constexpr std::size_t kMostRows = 512;
constexpr std::size_t kMostMarks = std::size_t{1} << 20;
constexpr double kMostUs = 1e15;  // three decades: what is beyond is no time of a trace
constexpr double kPixels = 1200;  // of a page: what is closer than half of one is one span

// Threads and tracks that a reader looks for, in this order; the others are of the engine's inside.
constexpr std::array<std::string_view, 10> kRows = {
    "compute", "optimizer",  "updates",    "h2d",  "d2h",
    "gathers", "reductions", "checkpoint", "copy", "data"};

constexpr double kMostExact = 9007199254740992;  // 2^53: integers below are exact in a page, too

using Thread = std::pair<std::int64_t, std::int64_t>;  // process, thread

/// Calls `each` for every event, each of which has a line, and `head` for what stands before them.
/// Throws user_error for what is no trace of ours: lines without end.
void for_each_event(const std::filesystem::path& path,
                    const std::function<void(const dom::object&)>& each,
                    const std::function<void(const dom::object&)>& head = {}) {
  BoundedLines lines(open_ordinary_file(path.string()), BoundedLines::kLongest, kMostBytes);
  dom::parser parser;
  while (const auto next = lines.next()) {
    const std::string_view line = *next;
    dom::object first;
    constexpr std::string_view kEvents = ",\"traceEvents\":[";
    if (const std::size_t at = line.find(kEvents); head && at != std::string_view::npos) {
      if (parser.parse(simdjson::padded_string(std::string(line.substr(0, at)) + "}")).get(first) ==
          simdjson::SUCCESS) {
        head(first);
      }
      continue;
    }
    const std::size_t begin = line.find_first_not_of(" [");
    const std::size_t end = line.find_last_of('}');
    if (begin == std::string_view::npos || end == std::string_view::npos || line[begin] != '{') {
      continue;
    }
    dom::object event;
    if (parser.parse(simdjson::padded_string(line.substr(begin, end + 1 - begin))).get(event) ==
        simdjson::SUCCESS) {
      each(event);
    }
  }
  if (lines.left_out() > 0 || lines.is_exhausted()) {
    throw user_error("report", "{} has lines of more than {} MiB, or more than {} GiB unpacked",
                     path.string(), BoundedLines::kLongest >> 20, kMostBytes >> 30);
  }
}

std::string_view text_of(const dom::object& event, std::string_view key) {
  std::string_view text;
  return event[key].get(text) == simdjson::SUCCESS ? text : std::string_view();
}

double number_of(const dom::object& event, std::string_view key) {
  double number = 0;
  return event[key].get(number) == simdjson::SUCCESS ? number : 0;
}

/// 0 for what no integer is.
std::int64_t integer_of(const dom::object& event, std::string_view key) {
  const double number = number_of(event, key);
  return std::abs(number) <= kMostExact ? static_cast<std::int64_t>(number) : 0;
}

Thread thread_of(const dom::object& event) {
  return {integer_of(event, "pid"), integer_of(event, "tid")};
}

bool is_time(double us) { return us >= 0 && us <= kMostUs; }

struct Mark {
  double at = 0;  // us
  std::int64_t step = 0;
};

struct Span {
  std::size_t row = 0;
  std::string name;
  double start = 0;
  double end = 0;
};

struct Threads {
  std::map<Thread, std::string> names;
  std::map<std::int64_t, std::vector<Mark>> marks;  // by process
  double end = 0;                                   // of the trace; 0: it does not say
};

Threads threads_and_marks(const std::filesystem::path& path) {
  Threads found;
  std::size_t count = 0;
  const auto see_event = [&](const dom::object& event) {
    const std::string_view kind = text_of(event, "ph");
    dom::object arguments;
    if (event["args"].get(arguments) != simdjson::SUCCESS) {
      return;
    }
    std::int64_t step = 0;
    if (kind == "M" && text_of(event, "name") == "thread_name") {
      if (found.names.size() >= kMostThreads) {
        return;
      }
      found.names[thread_of(event)] = text_of(arguments, "name");
    } else if (kind == "i" && arguments["step"].get(step) == simdjson::SUCCESS && step >= 0 &&
               static_cast<double>(step) < kMostExact && is_time(number_of(event, "ts")) &&
               ++count <= kMostMarks) {
      found.marks[thread_of(event).first].push_back({.at = number_of(event, "ts"), .step = step});
    }
  };
  const auto see_head = [&](const dom::object& head) {
    dom::object data;
    if (head["otherData"].get(data) == simdjson::SUCCESS) {
      constexpr double kNsPerUs = 1000;
      const double end = number_of(data, "end_ns") / kNsPerUs;
      found.end = is_time(end) ? end : 0;
    }
  };
  for_each_event(path, see_event, see_head);
  return found;
}

/// Where steps begin on the first rank, and where the last of them ends.
std::vector<Mark> boundaries_of(const Threads& threads) {
  if (threads.marks.empty()) {
    return {};
  }
  std::vector<Mark> marks = threads.marks.begin()->second;
  std::ranges::sort(marks, {}, &Mark::at);
  if (threads.end > marks.back().at) {
    marks.push_back({.at = threads.end, .step = marks.back().step + 1});
  }
  return marks;
}

/// The threads to show, and each one's place from the top: rank by rank.
std::map<Thread, std::size_t> rows_of(const Threads& threads, std::vector<std::string>& names) {
  struct Row {
    std::int64_t process;
    std::size_t kind;
    std::string name;
    Thread thread;
  };
  std::vector<Row> found;
  std::set<std::int64_t> processes;
  for (const auto& [thread, name] : threads.names) {
    const auto kind = std::ranges::find_if(
        kRows, [&name](std::string_view prefix) { return name.starts_with(prefix); });
    if (kind != kRows.end() && found.size() < kMostRows) {
      found.push_back({thread.first, static_cast<std::size_t>(kind - kRows.begin()), name, thread});
      processes.insert(thread.first);
    }
  }
  std::ranges::sort(found, {}, [](const Row& row) {
    return std::tuple(row.process, row.kind, row.name.size(), row.name);
  });
  std::map<Thread, std::size_t> rows;
  for (const Row& row : found) {
    rows[row.thread] = names.size();
    names.push_back(processes.size() > 1 ? fmt::format("{}: {}", row.process, row.name) : row.name);
  }
  return rows;
}

}  // namespace

void write_trace_window(JsonWriter& json, const std::filesystem::path& path) {
  const Threads threads = threads_and_marks(path);
  const std::vector<Mark> marks = boundaries_of(threads);
  if (marks.size() < 2) {
    json.value(nullptr);
    return;
  }
  const std::size_t first = marks.size() - 1 - std::min(kSteps, marks.size() - 1);
  const double begin = marks[first].at;
  const double end = marks.back().at;
  std::vector<std::string> names;
  const std::map<Thread, std::size_t> rows = rows_of(threads, names);

  std::vector<Span> spans;
  for_each_event(path, [&](const dom::object& event) {
    const auto row = rows.find(thread_of(event));
    const double start = number_of(event, "ts");
    const double stop = start + number_of(event, "dur");
    if (text_of(event, "ph") == "X" && row != rows.end() && is_time(start) && is_time(stop) &&
        stop > begin && start < end && spans.size() < kMostSeen) {
      spans.push_back({.row = row->second,
                       .name = std::string(text_of(event, "name")),
                       .start = std::max(start, begin),
                       .end = std::min(stop, end)});
    }
  });
  std::ranges::sort(spans, {}, &Span::start);
  const double apart = (end - begin) / kPixels / 2;
  std::vector<Span> merged;
  std::vector<std::size_t> last(names.size(), SIZE_MAX);
  for (Span& span : spans) {
    std::size_t& before = last[span.row];
    if (before != SIZE_MAX && merged[before].name == span.name &&
        span.start - merged[before].end < apart) {
      merged[before].end = std::max(merged[before].end, span.end);
    } else {
      before = merged.size();
      merged.push_back(std::move(span));
    }
  }
  const bool cut = spans.size() == kMostSeen || merged.size() > kMostSpans;
  if (merged.size() > kMostSpans) {  // the longest are what one sees
    std::ranges::nth_element(merged, merged.begin() + kMostSpans, std::ranges::greater{},
                             [](const Span& span) { return span.end - span.start; });
    merged.resize(kMostSpans);
  }

  json.begin_object().field("length_us", end - begin).field("rows", names).field("cut", cut);
  json.key("steps").begin_array();
  for (std::size_t i = first; i < marks.size(); ++i) {
    json.begin_object().field("at_us", marks[i].at - begin).field("step", marks[i].step);
    json.end_object();
  }
  json.end_array().key("spans").begin_array();
  for (const Span& span : merged) {
    json.begin_array().value(span.row).value(span.name);
    json.value(span.start - begin).value(span.end - span.start).end_array();
  }
  json.end_array().end_object();
}

}  // namespace tandem
