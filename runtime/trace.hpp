// runtime/trace.hpp — records what ran when, into one ring per thread; runtime/trace_file.hpp
// writes them.
//
// The runtime itself records each run of a task on its loop, each task from spawn to end, each
// await (what it waited for, from suspend to resume), each handler, an arrow for each message from
// its send to its handler (across threads, too), how full a mailbox is, each pool chunk and each
// job of a compute lane. Processes are ranks, device streams have tracks of their own. With the
// CUDA toolkit, spans of this thread are NVTX ranges as well.
// Off (the default): one predictable branch per span. On: two clock reads and one 48-byte record,
// no lock, no allocation after a thread's first record; a full ring overwrites its oldest records.
// Thread rule: any thread.
//
//   trace::enable();   { TraceSpan span{"adam"}; ... }   trace::write_chrome_json("trace.json.gz");
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "runtime/util/name.hpp"

namespace tandem {

namespace trace {

namespace detail {
extern std::atomic<bool> on;
extern std::atomic<bool> of_some_steps;
/// The kind of a record; the letters are those of the Chrome trace format.
enum class Kind : std::uint8_t {
  kSpan = 'X',     // start and duration on this thread; part `number` of `extra`, if that is not 0
  kHandler = 'H',  // a message's handler: `id` is its arrow, `number` how many wait behind it,
                   // `extra` the name of their mailbox
  kTrack = 'D',    // start and duration on a track, whose name's address is `extra`
  kAsync = 'a',    // start and duration of a span that may overlap; nests in those of its id
  kTaskBegin = 'b',  // of a task that may suspend: async, by id
  kTaskEnd = 'e',
  kFlowStart = 's',  // a message leaves
  kInstant = 'i',
  kCounter = 'C',   // a value over time; `id` is the value
  kStep = 'S',      // a step begins; `id` is its number
  kRankArrow = 'r'  // an arrow from this rank (`number` 0) or to it, on the track `extra`
};
struct Record {
  Kind kind = Kind::kSpan;
  std::uint32_t number = 0;
  const char* name = nullptr;
  std::int64_t start_ns = 0;
  std::int64_t duration_ns = 0;
  std::uint64_t id = 0;
  std::uint64_t extra = 0;
};
void record(const Record& record) noexcept;
void switch_for_step(std::int64_t number) noexcept;
std::int64_t now_ns() noexcept;
/// An NVTX range of this thread; nothing without the CUDA toolkit.
void push_range(const char* name) noexcept;
void pop_range() noexcept;
std::uint64_t next_id() noexcept;
}  // namespace detail

/// True while records are taken.
[[nodiscard]] inline bool enabled() noexcept { return detail::on.load(std::memory_order_relaxed); }
struct Options {
  // The number of its last records that each thread keeps, rounded up to a power of two. A thread
  // that has a ring already keeps that.
  std::size_t records_per_thread = std::size_t{1} << 16;
  std::size_t records_of_caller = 0;  // the calling thread's, if it is to keep more
  // Recording is limited to these steps (begin_step()); first_step 0: it begins at once.
  std::int64_t first_step = 0;
  std::int64_t last_step = std::numeric_limits<std::int64_t>::max();
};
void enable(const Options& options = {});
void disable() noexcept;
/// Returns the bytes that the rings of the caller and of `other_threads` other threads hold once
/// full; 0 if nothing is to be recorded.
[[nodiscard]] std::size_t bytes_at_most(std::size_t other_threads);
/// Drops all records. Called only while no thread records.
void clear();

/// Marks the beginning of the step `number`; if Options names steps, starts or stops recording
/// here.
inline void begin_step(std::int64_t number) noexcept {
  if (detail::of_some_steps.load(std::memory_order_relaxed)) [[unlikely]] {
    detail::switch_for_step(number);
  }
  if (enabled()) [[unlikely]] {
    detail::record({.kind = detail::Kind::kStep,
                    .name = "step",
                    .start_ns = detail::now_ns(),
                    .id = static_cast<std::uint64_t>(number)});
  }
}

/// Sets the calling thread's name in the file.
void set_thread_name(const std::string& name);
/// Sets the rank that this process's records belong to (before, they have none, and the process id
/// stands in the file).
void set_rank(int rank) noexcept;
/// Sets the rank that the calling thread's records belong to from now on, for several ranks in one
/// process; -1: the process's rank.
void set_thread_rank(int rank) noexcept;

/// Records a point in time.
inline void instant(Name name) noexcept {
  if (enabled()) [[unlikely]] {
    detail::record(
        {.kind = detail::Kind::kInstant, .name = name.c_str(), .start_ns = detail::now_ns()});
  }
}

/// Records the value that the counter `name` has now.
inline void counter(Name name, std::uint64_t value) noexcept {
  if (enabled()) [[unlikely]] {
    detail::record({.kind = detail::Kind::kCounter,
                    .name = name.c_str(),
                    .start_ns = detail::now_ns(),
                    .id = value});
  }
}

/// Records work of a device, or work that a thread does in turn with other things, on a track of
/// its own. Spans of one track do not overlap. Times as of now_ns().
inline void track_span(Name track, Name name, std::int64_t start_ns, std::int64_t end_ns) noexcept {
  if (enabled()) [[unlikely]] {
    detail::record({.kind = detail::Kind::kTrack,
                    .name = name.c_str(),
                    .start_ns = start_ns,
                    .duration_ns = end_ns - start_ns,
                    .extra = reinterpret_cast<std::uintptr_t>(track.c_str())});
  }
}
/// Records one end of an arrow to another rank, or from one, in a span of that track; both ends
/// name the same `id`. The file has the arrows that have both ends.
inline void rank_arrow(Name track, bool leaves, std::int64_t at_ns, std::uint64_t id) noexcept {
  if (enabled()) [[unlikely]] {
    detail::record({.kind = detail::Kind::kRankArrow,
                    .number = leaves ? 0U : 1U,
                    .name = "rank",
                    .start_ns = at_ns,
                    .id = id,
                    .extra = reinterpret_cast<std::uintptr_t>(track.c_str())});
  }
}
/// The clock of all records: std::chrono::steady_clock, which is the same for all processes of a
/// host.
[[nodiscard]] inline std::int64_t now_ns() noexcept { return detail::now_ns(); }

/// The place of a span among several equal parts: "update block 3 [2/8]".
struct Part {
  std::uint32_t index = 0;
  std::uint32_t of = 0;  // 0: it is whole
};

}  // namespace trace

/// Records the time from here to the end of the block. It must not live across a co_await: on one
/// thread spans must nest.
class TraceSpan {
 public:
  explicit TraceSpan(Name name, trace::Part part = {}) noexcept {
    if (trace::enabled()) [[unlikely]] {
      name_ = name.c_str();
      part_ = part;
      trace::detail::push_range(name_);
      start_ns_ = trace::detail::now_ns();
    }
  }
  ~TraceSpan() {
    if (name_ != nullptr) [[unlikely]] {
      trace::detail::record({.number = part_.index,
                             .name = name_,
                             .start_ns = start_ns_,
                             .duration_ns = trace::detail::now_ns() - start_ns_,
                             .extra = part_.of});
      trace::detail::pop_range();
    }
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  const char* name_ = nullptr;
  trace::Part part_;
  std::int64_t start_ns_ = 0;
};

/// Records the same across co_awaits, on a track of its own, because others run meanwhile. Records
/// nothing if `name` is null.
class AsyncTraceSpan {
 public:
  explicit AsyncTraceSpan(const char* name) noexcept {
    if (name != nullptr && trace::enabled()) [[unlikely]] {
      name_ = name;
      start_ns_ = trace::detail::now_ns();
    }
  }
  ~AsyncTraceSpan() {
    if (name_ != nullptr) [[unlikely]] {
      trace::detail::record({.kind = trace::detail::Kind::kAsync,
                             .name = name_,
                             .start_ns = start_ns_,
                             .duration_ns = trace::detail::now_ns() - start_ns_,
                             .id = trace::detail::next_id()});
    }
  }
  AsyncTraceSpan(const AsyncTraceSpan&) = delete;
  AsyncTraceSpan& operator=(const AsyncTraceSpan&) = delete;

 private:
  const char* name_ = nullptr;
  std::int64_t start_ns_ = 0;
};

}  // namespace tandem
