// runtime/trace.hpp — what ran when: into rings, one per thread, and out as Chrome/Perfetto JSON.
//
// Recorded by the runtime itself: each run of a task on its loop, each task from spawn to end, each
// await (what it waited for, from suspend to resume), each handler, an arrow for each message from
// its send to its handler (across threads, too), how full a mailbox is, each pool chunk and each
// job of a compute lane. Processes are ranks, device streams have tracks of their own. With the
// CUDA toolkit, spans of this thread are NVTX ranges as well.
// Off (the default): one predictable branch per span. On: two clock reads and one 48-byte record,
// no lock, no allocation after a thread's first record; a full ring overwrites its oldest records.
// Thread rule: any thread. write_chrome_json() while others record is safe, and leaves out what is
// being overwritten.
//
//   trace::enable();   { TraceSpan span{"adam"}; ... }   trace::write_chrome_json("trace.json.gz");
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/util/name.hpp"

namespace tandem {

namespace trace {

namespace detail {
extern std::atomic<bool> on;
/// What a record is; the letters are those of the Chrome trace format.
enum class Kind : std::uint8_t {
  kSpan = 'X',       // start and duration on this thread
  kDevice = 'D',     // start and duration on a stream, whose name's address is the id
  kAsync = 'a',      // start and duration of what may overlap; nests in what has the same id
  kTaskBegin = 'b',  // of a task that may suspend: async, by id
  kTaskEnd = 'e',
  kFlowStart = 's',  // a message leaves
  kFlowEnd = 'f',    // ... and is handled
  kInstant = 'i',
  kCounter = 'C',  // the value is the id
};
void record(Kind kind, const char* name, std::int64_t start_ns, std::int64_t duration_ns,
            std::uint64_t id) noexcept;
std::int64_t now_ns() noexcept;
/// An NVTX range of this thread; nothing without the CUDA toolkit.
void push_range(const char* name) noexcept;
void pop_range() noexcept;
std::uint64_t next_id() noexcept;
}  // namespace detail

/// True while records are taken.
[[nodiscard]] inline bool enabled() noexcept { return detail::on.load(std::memory_order_relaxed); }
/// Each thread keeps its last `records_per_thread` (rounded up to a power of two) from its next
/// record on.
void enable(std::size_t records_per_thread = std::size_t{1} << 16);
void disable() noexcept;
/// Drops what was recorded. Only while no thread records.
void clear();

/// How the calling thread is called in the file.
void set_thread_name(const std::string& name);
/// The rank that this process's records belong to (before: none, and the process id stands in the
/// file).
void set_rank(int rank) noexcept;
/// The rank that the calling thread's records belong to from now on, for several ranks in one
/// process; -1: the process's.
void set_thread_rank(int rank) noexcept;

/// A point in time.
inline void instant(Name name) noexcept {
  if (enabled()) [[unlikely]] {
    detail::record(detail::Kind::kInstant, name.c_str(), detail::now_ns(), 0, 0);
  }
}

/// A value over time.
inline void counter(Name name, std::uint64_t value) noexcept {
  if (enabled()) [[unlikely]] {
    detail::record(detail::Kind::kCounter, name.c_str(), detail::now_ns(), 0, value);
  }
}

/// What a device did, on the track of its stream. Operations of one stream do not overlap. Times as
/// of now_ns().
inline void device_span(Name stream, Name name, std::int64_t start_ns,
                        std::int64_t end_ns) noexcept {
  if (enabled()) [[unlikely]] {
    detail::record(detail::Kind::kDevice, name.c_str(), start_ns, end_ns - start_ns,
                   reinterpret_cast<std::uintptr_t>(stream.c_str()));
  }
}
/// The clock of all records: std::chrono::steady_clock.
[[nodiscard]] inline std::int64_t now_ns() noexcept { return detail::now_ns(); }

/// Writes what is in the rings, oldest first; gzip if `path` ends in ".gz". Throws Error naming the
/// path.
void write_chrome_json(const std::string& path);
/// The same as text (for tests and small traces).
[[nodiscard]] std::string chrome_json();

}  // namespace trace

/// Records the time from here to the end of the block. Not across a co_await: on one thread spans
/// must nest.
class TraceSpan {
 public:
  explicit TraceSpan(Name name) noexcept {
    if (trace::enabled()) [[unlikely]] {
      name_ = name.c_str();
      trace::detail::push_range(name_);
      start_ns_ = trace::detail::now_ns();
    }
  }
  ~TraceSpan() {
    if (name_ != nullptr) [[unlikely]] {
      trace::detail::record(trace::detail::Kind::kSpan, name_, start_ns_,
                            trace::detail::now_ns() - start_ns_, 0);
      trace::detail::pop_range();
    }
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  const char* name_ = nullptr;
  std::int64_t start_ns_ = 0;
};

/// The same across co_awaits, where others run meanwhile: on a track of its own. `name` null:
/// nothing.
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
      trace::detail::record(trace::detail::Kind::kAsync, name_, start_ns_,
                            trace::detail::now_ns() - start_ns_, trace::detail::next_id());
    }
  }
  AsyncTraceSpan(const AsyncTraceSpan&) = delete;
  AsyncTraceSpan& operator=(const AsyncTraceSpan&) = delete;

 private:
  const char* name_ = nullptr;
  std::int64_t start_ns_ = 0;
};

}  // namespace tandem
