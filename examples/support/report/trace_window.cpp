#include "examples/support/report/trace_window.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <simdjson.h>
#include <zlib.h>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

namespace dom = simdjson::dom;

constexpr std::size_t kSteps = 3;
constexpr std::size_t kMostSpans = 6000;
constexpr double kPixels = 1200;  // of a page: what is closer than half of one is one span

// Threads that a reader looks for, in this order; the others are of the engine's inside.
constexpr std::array<std::string_view, 7> kRows = {"compute", "adam", "stream", "copy",
                                                   "link",    "disk", "data"};

using Thread = std::pair<std::int64_t, std::int64_t>;  // process, thread

/// Calls `each` for every event; the writer gives each one a line.
void for_each_event(const std::filesystem::path& path,
                    const std::function<void(const dom::object&)>& each) {
  const std::unique_ptr<gzFile_s, decltype(&gzclose)> file(gzopen(path.c_str(), "rb"), &gzclose);
  if (file == nullptr) {
    throw user_error("report", "cannot read {}", path.string());
  }
  std::array<char, 1 << 16> buffer{};
  dom::parser parser;
  while (gzgets(file.get(), buffer.data(), static_cast<int>(buffer.size())) != nullptr) {
    std::string_view line = buffer.data();
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
}

std::string_view text_of(const dom::object& event, std::string_view key) {
  std::string_view text;
  return event[key].get(text) == simdjson::SUCCESS ? text : std::string_view();
}

double number_of(const dom::object& event, std::string_view key) {
  double number = 0;
  return event[key].get(number) == simdjson::SUCCESS ? number : 0;
}

Thread thread_of(const dom::object& event) {
  return {static_cast<std::int64_t>(number_of(event, "pid")),
          static_cast<std::int64_t>(number_of(event, "tid"))};
}

struct Mark {
  double at = 0;
  std::int64_t step = 0;  // 0: the trace does not say
};

struct Span {
  std::size_t row = 0;
  std::string name;
  double start = 0;
  double end = 0;
};

struct Threads {
  std::map<Thread, std::string> names;
  std::vector<Mark> marks;
};

Threads threads_and_marks(const std::filesystem::path& path) {
  Threads found;
  for_each_event(path, [&](const dom::object& event) {
    const std::string_view kind = text_of(event, "ph");
    const std::string_view name = text_of(event, "name");
    dom::object arguments;
    if (kind == "M" && name == "thread_name" && event["args"].get(arguments) == simdjson::SUCCESS) {
      found.names[thread_of(event)] = text_of(arguments, "name");
    } else if (kind == "i" && (name == "step" || name.starts_with("step "))) {
      Mark mark{.at = number_of(event, "ts")};
      if (name.size() > 5) {
        std::from_chars(name.data() + 5, name.data() + name.size(), mark.step);
      }
      found.marks.push_back(mark);
    }
  });
  std::ranges::sort(found.marks, {}, &Mark::at);
  return found;
}

/// The threads to show, and each one's place from the top.
std::map<Thread, std::size_t> rows_of(const Threads& threads, std::vector<std::string>& names) {
  std::map<Thread, std::size_t> rows;
  for (const std::string_view kind : kRows) {
    std::vector<std::pair<std::string, Thread>> of_kind;
    for (const auto& [thread, name] : threads.names) {
      if (name.starts_with(kind)) {
        of_kind.emplace_back(name, thread);
      }
    }
    std::ranges::sort(of_kind);
    for (const auto& [name, thread] : of_kind) {
      rows[thread] = names.size();
      names.push_back(name);
    }
  }
  return rows;
}

}  // namespace

void write_trace_window(JsonWriter& json, const std::filesystem::path& path,
                        std::int64_t last_step) {
  Threads threads = threads_and_marks(path);
  std::vector<Mark>& marks = threads.marks;
  if (marks.size() < 2) {
    json.value(nullptr);
    return;
  }
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if (marks[i].step == 0) {
      marks[i].step = last_step - static_cast<std::int64_t>(marks.size() - 1 - i);
    }
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
    if (text_of(event, "ph") == "X" && row != rows.end() && stop > begin && start < end) {
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
  const bool cut = merged.size() > kMostSpans;
  if (cut) {  // the longest are what one sees
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
