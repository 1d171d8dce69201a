#include "runtime/detail/trace_events.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/detail/trace_ring.hpp"
#include "runtime/util/json_writer.hpp"

namespace tandem::trace::detail {

namespace {

constexpr int kFirstTrack = 1'000'000'000;  // beyond every thread id
constexpr int kTracksOfRank = 1000;
// Ids of several ranks share a file; a number of JSON has 53 bits.
constexpr int kIdBits = 40;

struct Event : Ring::Entry {
  int thread_id = 0;
};

std::vector<Event> recorded(std::vector<ThreadName>& names) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  names = all.names;
  std::vector<Event> events;
  for (const auto& ring : all.rings) {
    for (const Ring::Entry& entry : ring->read().entries) {
      events.push_back({entry, ring->thread_id()});
      events.back().rank = entry.rank >= 0 ? entry.rank : process_rank();
    }
  }
  return events;
}

/// Each task becomes one record, from its begin to its end; where one of the two is not there it
/// lasts beyond the window.
void join_tasks(std::vector<Event>& events) {
  constexpr std::int64_t kEver = std::numeric_limits<std::int64_t>::max();
  std::unordered_map<std::uint64_t, Event> tasks;
  for (const Event& event : events) {
    if (event.kind == Kind::kTaskBegin) {
      Event& task = tasks[event.id] = event;
      task.duration_ns = kEver - task.start_ns;
    } else if (event.kind == Kind::kTaskEnd) {
      Event& task = tasks.try_emplace(event.id, event).first->second;
      task.start_ns = task.kind == Kind::kTaskBegin ? task.start_ns : 0;
      task.duration_ns = event.start_ns - task.start_ns;
    }
  }
  std::erase_if(events, [](const Event& event) {
    return event.kind == Kind::kTaskBegin || event.kind == Kind::kTaskEnd;
  });
  for (auto& [id, task] : tasks) {
    task.kind = Kind::kTaskBegin;
    events.push_back(task);
  }
}

/// When a thread was within any span.
class BusyTimes {
 public:
  explicit BusyTimes(const std::vector<Event>& events) {
    for (const Event& event : events) {
      if (event.kind == Kind::kSpan || event.kind == Kind::kHandler) {
        threads_[event.thread_id].emplace_back(event.start_ns, event.end_ns());
      }
    }
    for (auto& [thread, spans] : threads_) {
      std::ranges::sort(spans);
      for (std::size_t i = 1; i < spans.size(); ++i) {  // ends become those of all spans so far
        spans[i].second = std::max(spans[i].second, spans[i - 1].second);
      }
    }
  }
  [[nodiscard]] bool hold(const Event& event) const {
    const auto found = threads_.find(event.thread_id);
    if (found == threads_.end()) {
      return false;
    }
    const auto behind = std::ranges::upper_bound(found->second, event.start_ns, {},
                                                 [](const auto& span) { return span.first; });
    return behind != found->second.begin() && std::prev(behind)->second >= event.start_ns;
  }

 private:
  std::unordered_map<int, std::vector<std::pair<std::int64_t, std::int64_t>>> threads_;
};

/// A message that leaves or arrives outside of the window, or leaves outside of any span, has no
/// arrow: its id becomes 0.
void drop_half_arrows(std::vector<Event>& events, const Window& window) {
  const BusyTimes busy(events);
  const auto end_of = [&](const Event& event) {
    const bool is_in = event.start_ns >= window.begin_ns && event.start_ns <= window.end_ns;
    return !is_in                           ? 0
           : event.kind == Kind::kFlowStart ? (busy.hold(event) ? 1 : 0)
           : event.kind == Kind::kHandler   ? 2
                                            : 0;
  };
  std::unordered_map<std::uint64_t, int> ends;
  for (const Event& event : events) {
    if (const int end = end_of(event); end != 0) {
      ends[event.id] |= end;
    }
  }
  for (Event& event : events) {
    if (event.kind == Kind::kFlowStart || event.kind == Kind::kHandler) {
      event.id = ends[event.id] == 3 ? event.id : 0;
    }
  }
}

/// The events of this process in the window; an event that lasts longer is cut.
std::vector<Event> events_in(const Window& window, std::vector<ThreadName>& names) {
  std::vector<Event> events = recorded(names);
  join_tasks(events);
  drop_half_arrows(events, window);
  std::erase_if(events, [&](const Event& event) {
    return event.start_ns > window.end_ns || event.end_ns() < window.begin_ns ||
           (event.kind == Kind::kFlowStart && event.id == 0);
  });
  for (Event& event : events) {
    const std::int64_t end_ns = std::min(event.end_ns(), window.end_ns);
    event.start_ns = std::max(event.start_ns, window.begin_ns);
    event.duration_ns = end_ns - event.start_ns;
  }
  return events;
}

class Writer {
 public:
  explicit Writer(const EventSink& sink) : sink_(sink) {}

  /// Lines that a record becomes: those at its start, and the one at its end where that is apart.
  void add_start(const Event& event) {
    const int pid = pid_of(event);
    const int track = track_of(event, pid);
    tracks_.insert({pid, track});
    switch (event.kind) {
      case Kind::kSpan:
      case Kind::kTrack:
        complete(event, pid, track, event.kind == Kind::kSpan ? "span" : "track");
        break;
      case Kind::kHandler:
        add_handler(event, pid, track);
        break;
      case Kind::kAsync:
      case Kind::kTaskBegin:
        async(event, pid, track, 'b', event.start_ns);
        break;
      case Kind::kFlowStart:
        begin(event.name, 's', pid, track, event.start_ns);
        end(R"(,"cat":"message","id":{}}})", id_of(event, pid));
        break;
      case Kind::kInstant:
        begin(event.name, 'i', pid, track, event.start_ns);
        end(R"(,"cat":"instant","s":"t"}})");
        break;
      case Kind::kStep:
        begin(fmt::format("step {}", event.id), 'i', pid, track, event.start_ns);
        end(R"(,"cat":"step","s":"p","args":{{"step":{}}}}})", event.id);
        break;
      case Kind::kCounter:
        begin(event.name, 'C', pid, track, event.start_ns);
        end(R"(,"args":{{"value":{}}}}})", event.id);
        break;
      case Kind::kRankArrow:
        begin(event.name, event.number == 0 ? 's' : 'f', pid, track, event.start_ns);
        end(R"(,{}{}{}}})", kRankArrowMark, event.id, event.number == 0 ? "" : R"(,"bp":"e")");
        break;
      case Kind::kTaskEnd:
        break;
    }
  }
  void add_end(const Event& event) {
    const int pid = pid_of(event);
    async(event, pid, track_of(event, pid), 'e', event.end_ns());
  }

  void finish(const std::vector<ThreadName>& thread_names) {
    std::set<int> named;
    for (const auto& [pid, track] : tracks_) {
      if (named.insert(pid).second) {
        metadata("process_name", pid, 0,
                 ranks_.at(pid) >= 0 ? fmt::format("rank {}", ranks_.at(pid)) : "tandem");
      }
      if (const auto found = track_names_.find(track); found != track_names_.end()) {
        metadata("thread_name", pid, track, found->second);
      }
      for (const ThreadName& entry : thread_names) {
        if (entry.thread_id == track) {
          metadata("thread_name", pid, track, entry.name);
        }
      }
    }
  }

 private:
  int pid_of(const Event& event) {
    const int pid = event.rank >= 0 ? event.rank : getpid();
    ranks_.try_emplace(pid, event.rank);
    return pid;
  }
  int track_of(const Event& event, int pid) {
    if (event.kind != Kind::kTrack && event.kind != Kind::kRankArrow) {
      return event.thread_id;
    }
    const auto* name = reinterpret_cast<const char*>(event.extra);
    auto& tracks = tracks_of_[pid];
    const int base = kFirstTrack + (event.rank + 1) * kTracksOfRank;
    const int track =
        tracks.try_emplace(name, base + static_cast<int>(tracks.size())).first->second;
    track_names_.try_emplace(track, name);
    return track;
  }
  static std::uint64_t id_of(const Event& event, int pid) {
    const auto rank = static_cast<std::uint64_t>(event.rank >= 0 ? pid + 1 : 0);
    return rank << kIdBits | (event.id & ((std::uint64_t{1} << kIdBits) - 1));
  }

  void complete(const Event& event, int pid, int track, std::string_view category) {
    const auto* name = event.name;
    const bool is_part = event.kind == Kind::kSpan && event.extra > 1;
    begin(is_part ? fmt::format("{} [{}/{}]", name, event.number + 1, event.extra) : name, 'X', pid,
          track, event.start_ns);
    end(R"(,"cat":"{}","dur":{}.{:03}}})", category, event.duration_ns / 1000,
        event.duration_ns % 1000);
  }
  void add_handler(const Event& event, int pid, int track) {
    complete(event, pid, track, "span");
    begin(reinterpret_cast<const char*>(event.extra), 'C', pid, track, event.start_ns);
    end(R"(,"args":{{"value":{}}}}})", event.number);
    if (event.id != 0) {
      begin(event.name, 'f', pid, track, event.start_ns);
      end(R"(,"cat":"message","id":{},"bp":"e"}})", id_of(event, pid));
    }
  }
  void async(const Event& event, int pid, int track, char phase, std::int64_t at_ns) {
    begin(event.name, phase, pid, track, at_ns);
    end(R"(,"cat":"task","id":{}}})", id_of(event, pid));
  }

  void begin(std::string_view name, char phase, int pid, int track, std::int64_t ns) {
    line_ = R"({"name":)";
    append_json_string(line_, name);
    fmt::format_to(std::back_inserter(line_), R"(,"ph":"{}","pid":{},"tid":{},"ts":{}.{:03})",
                   phase, pid, track, ns / 1000, ns % 1000);
  }
  template <class... Args>
  void end(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(line_), format, std::forward<Args>(args)...);
    sink_(line_);
  }
  void metadata(std::string_view what, int pid, int track, std::string_view name) {
    line_ = fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"name":)", what, pid,
                        track);
    append_json_string(line_, name);
    end("}}}}");
  }

  const EventSink& sink_;
  std::string line_;
  std::set<std::pair<int, int>> tracks_;                 // process, thread or track
  std::map<int, int> ranks_;                             // process to rank
  std::map<int, std::map<const char*, int>> tracks_of_;  // names are interned: one address each
  std::map<int, std::string> track_names_;
};

bool has_end(const Event& event) {
  return event.kind == Kind::kAsync || event.kind == Kind::kTaskBegin;
}

}  // namespace

void write_events(const Window& window, const EventSink& sink) {
  std::vector<ThreadName> names;
  const std::vector<Event> events = events_in(window, names);
  // By time. At the same time what ends there comes first, the inner one before the outer one; then
  // what begins, the longer one first.
  struct Line {
    std::int64_t at_ns;
    std::int64_t order;
    const Event* event;
    bool is_end;
  };
  std::vector<Line> lines;
  lines.reserve(events.size());
  for (const Event& event : events) {
    lines.push_back({event.start_ns, -event.duration_ns, &event, false});
    if (has_end(event)) {
      constexpr std::int64_t kFirst = std::numeric_limits<std::int64_t>::min() / 2;
      const std::int64_t order = event.duration_ns > 0 ? kFirst + event.duration_ns / 2 : 0;
      lines.push_back({event.end_ns(), order, &event, true});
    }
  }
  std::ranges::sort(lines, {}, [](const Line& line) {
    return std::tuple(line.at_ns, line.order, line.event, line.is_end);
  });
  Writer writer(sink);
  for (const Line& line : lines) {
    line.is_end ? writer.add_end(*line.event) : writer.add_start(*line.event);
  }
  writer.finish(names);
}

}  // namespace tandem::trace::detail
