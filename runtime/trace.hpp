// runtime/trace.hpp — spans, tasks and message flows into rings, one per thread, and out as Chrome/Perfetto JSON.
//
// Off (the default): one predictable branch per span. On: two clock reads and one 48-byte record, no lock, no allocation
// after a thread's first record; a full ring overwrites its oldest records.
// Thread rule: any thread. write_chrome_json() while others record is safe, and leaves out what is being overwritten.
//
//   trace::enable();   { TraceSpan span{"adam"}; ... }   trace::write_chrome_json("run/trace.json.gz");
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/name.hpp"

namespace tandem {

namespace trace {

namespace detail {
extern std::atomic<bool> on;
/// What a record is; the letters are those of the Chrome trace format.
enum class Kind : std::uint8_t {
  kSpan = 'X',       // start and duration on this thread
  kTaskBegin = 'b',  // of a task that may suspend: async, by id
  kTaskEnd = 'e',
  kFlowStart = 's',  // a message leaves
  kFlowEnd = 'f',    // ... and is handled
  kInstant = 'i',
};
void record(Kind kind, const char* name, std::int64_t start_ns, std::int64_t duration_ns,
            std::uint64_t id) noexcept;
std::int64_t now_ns() noexcept;
std::uint64_t next_id() noexcept;
}  // namespace detail

/// True while records are taken.
[[nodiscard]] inline bool enabled() noexcept { return detail::on.load(std::memory_order_relaxed); }
/// Each thread keeps its last `records_per_thread` (rounded up to a power of two) from its next record on.
void enable(std::size_t records_per_thread = std::size_t{1} << 16);
void disable() noexcept;
/// Drops what was recorded. Only while nobody records.
void clear();

/// How the calling thread is called in the file.
void set_thread_name(const std::string& name);

/// A point in time.
inline void instant(Name name) noexcept {
  if (enabled()) [[unlikely]] {
    detail::record(detail::Kind::kInstant, name.c_str(), detail::now_ns(), 0, 0);
  }
}

/// Writes what is in the rings, oldest first; gzip if `path` ends in ".gz". Throws Error naming the path.
void write_chrome_json(const std::string& path);
/// The same as text (for tests and small traces).
[[nodiscard]] std::string chrome_json();

}  // namespace trace

/// Records the time from here to the end of the block. Not across a co_await: on one thread spans must nest.
class TraceSpan {
 public:
  explicit TraceSpan(Name name) noexcept {
    if (trace::enabled()) [[unlikely]] {
      name_ = name.c_str();
      start_ns_ = trace::detail::now_ns();
    }
  }
  ~TraceSpan() {
    if (name_ != nullptr) [[unlikely]] {
      trace::detail::record(trace::detail::Kind::kSpan, name_, start_ns_,
                            trace::detail::now_ns() - start_ns_, 0);
    }
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  const char* name_ = nullptr;
  std::int64_t start_ns_ = 0;
};

}  // namespace tandem
