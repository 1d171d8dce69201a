#include "runtime/trace.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <new>
#include <utility>

#include <unistd.h>

#include "runtime/detail/trace_ring.hpp"

namespace tandem::trace {

namespace detail {

std::atomic<bool> on{false};
std::atomic<bool> of_some_steps{false};

namespace {

std::atomic<int> g_rank{-1};
constinit thread_local int t_rank = -1;
constinit thread_local Ring* t_ring = nullptr;
std::atomic<std::int64_t> g_first_step{0};
std::atomic<std::int64_t> g_last_step{0};

Ring& add_ring(Registry& all, std::size_t records) {
  all.rings.push_back(
      std::make_unique<Ring>(std::bit_ceil(std::max<std::size_t>(records, 64)), gettid()));
  return *all.rings.back();
}

Ring& this_threads_ring() {
  if (t_ring == nullptr) {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    t_ring = &add_ring(all, all.options.records_per_thread);
  }
  return *t_ring;
}

/// The caller holds the registry's mutex.
void begin_period(Registry& all) {
  if (all.period.began_ns == 0) {
    all.period.began_ns = now_ns();
  }
  all.period.ended_ns = 0;
  on.store(true, std::memory_order_relaxed);
}

void end_period(Registry& all) {
  if (on.exchange(false, std::memory_order_relaxed)) {
    all.period.ended_ns = now_ns();
  }
}

}  // namespace

// ---- a ring

Ring::Ring(std::size_t records, int thread_id)
    : words_(static_cast<std::uint64_t*>(std::calloc(records * kWords, sizeof(std::uint64_t)))),
      mask_(records - 1),
      thread_id_(thread_id) {
  if (words_ == nullptr) {
    throw std::bad_alloc();
  }
}

void Ring::push(const Record& record, int rank) noexcept {
  const std::uint64_t at = head_.load(std::memory_order_relaxed);
  const std::uint64_t first_word = static_cast<std::uint64_t>(record.kind) |
                                   static_cast<std::uint64_t>(rank + 1) << 8 |
                                   static_cast<std::uint64_t>(record.number) << 32;
  word(at, 0).store(first_word, std::memory_order_relaxed);
  word(at, 1).store(reinterpret_cast<std::uintptr_t>(record.name), std::memory_order_relaxed);
  word(at, 2).store(static_cast<std::uint64_t>(record.start_ns), std::memory_order_relaxed);
  word(at, 3).store(static_cast<std::uint64_t>(record.duration_ns), std::memory_order_relaxed);
  word(at, 4).store(record.id, std::memory_order_relaxed);
  word(at, 5).store(record.extra, std::memory_order_relaxed);
  // release: a reader that sees the new head sees the record.
  head_.store(at + 1, std::memory_order_release);
}

Ring::Contents Ring::read() const {
  const std::uint64_t end = head_.load(std::memory_order_acquire);
  const std::uint64_t capacity = mask_ + 1;
  const std::uint64_t begin = std::max(first_, end > capacity ? end - capacity : 0);
  Contents contents{.dropped = begin > first_};
  std::vector<Entry>& entries = contents.entries;
  entries.reserve(end - begin);
  for (std::uint64_t at = begin; at < end; ++at) {
    const std::uint64_t first_word = word(at, 0).load(std::memory_order_relaxed);
    Entry entry;
    entry.kind = static_cast<Kind>(first_word & 0xff);
    entry.rank = static_cast<int>(first_word >> 8 & 0xff'ffff) - 1;
    entry.number = static_cast<std::uint32_t>(first_word >> 32);
    entry.name = reinterpret_cast<const char*>(word(at, 1).load(std::memory_order_relaxed));
    entry.start_ns = static_cast<std::int64_t>(word(at, 2).load(std::memory_order_relaxed));
    entry.duration_ns = static_cast<std::int64_t>(word(at, 3).load(std::memory_order_relaxed));
    entry.id = word(at, 4).load(std::memory_order_relaxed);
    entry.extra = word(at, 5).load(std::memory_order_relaxed);
    entries.push_back(entry);
  }
  // Slots that the writer may have overwritten while we read, plus the one it may be in now.
  const std::uint64_t now = head_.load(std::memory_order_acquire);
  if (now != end && now + 1 > begin + capacity) {
    const std::uint64_t stale = std::min<std::uint64_t>(now + 1 - capacity - begin, entries.size());
    entries.erase(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(stale));
    contents.dropped = true;
  }
  return contents;
}

// Never destroyed: threads may record until the process ends.
Registry& registry() {
  static Registry& instance = *new Registry;
  return instance;
}

int process_rank() noexcept { return g_rank.load(std::memory_order_relaxed); }

void record(const Record& record) noexcept { this_threads_ring().push(record, t_rank); }

void switch_for_step(std::int64_t number) noexcept {
  const bool wanted = number >= g_first_step.load(std::memory_order_relaxed) &&
                      number <= g_last_step.load(std::memory_order_relaxed);
  if (wanted == enabled()) {
    return;
  }
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  wanted ? begin_period(all) : end_period(all);
}

std::int64_t now_ns() noexcept {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

std::uint64_t next_id() noexcept {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace detail

void enable(const Options& options) {
  detail::Registry& all = detail::registry();
  const std::lock_guard lock(all.mutex);
  all.options = options;
  if (options.records_of_caller > 0 && detail::t_ring == nullptr) {
    detail::t_ring = &detail::add_ring(all, options.records_of_caller);
  }
  detail::g_first_step.store(options.first_step, std::memory_order_relaxed);
  detail::g_last_step.store(options.last_step, std::memory_order_relaxed);
  const bool later = options.first_step > 0;
  detail::of_some_steps.store(later, std::memory_order_relaxed);
  if (!later) {
    detail::begin_period(all);
  }
}

void disable() noexcept {
  detail::Registry& all = detail::registry();
  const std::lock_guard lock(all.mutex);
  detail::of_some_steps.store(false, std::memory_order_relaxed);
  detail::end_period(all);
}

std::size_t bytes_at_most(std::size_t other_threads) {
  if (!enabled() && !detail::of_some_steps.load(std::memory_order_relaxed)) {
    return 0;
  }
  detail::Registry& all = detail::registry();
  const std::lock_guard lock(all.mutex);
  const std::size_t own = std::max(all.options.records_of_caller, all.options.records_per_thread);
  return detail::Ring::bytes_of(own + other_threads * all.options.records_per_thread);
}

void clear() {
  detail::Registry& all = detail::registry();
  const std::lock_guard lock(all.mutex);
  for (const auto& ring : all.rings) {
    ring->clear();
  }
  all.period = {.began_ns = enabled() ? detail::now_ns() : 0};
}

void set_thread_name(const std::string& name) {
  detail::Registry& all = detail::registry();
  const int id = gettid();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.names, [id](const detail::ThreadName& entry) { return entry.thread_id == id; });
  all.names.push_back({id, name});
}

void set_rank(int rank) noexcept { detail::g_rank.store(rank, std::memory_order_relaxed); }
void set_thread_rank(int rank) noexcept { detail::t_rank = rank; }

}  // namespace tandem::trace
