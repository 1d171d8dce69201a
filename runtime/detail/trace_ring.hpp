// runtime/detail/trace_ring.hpp — the last trace records of a thread, and the rings of all threads.
//
// A ring's memory is touched as it fills: a thread that records little costs little.
// Invariant: the ring's thread is the one writer. Any thread may read meanwhile; it does not get
// the records that the writer was overwriting then. Internal.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/trace.hpp"

namespace tandem::trace::detail {

class Ring {
 public:
  /// `records` is a power of two.
  Ring(std::size_t records, int thread_id);

  void push(const Record& record, int rank) noexcept;

  struct Entry : Record {
    int rank = -1;  // of the thread; -1: the process's
    [[nodiscard]] std::int64_t end_ns() const noexcept { return start_ns + duration_ns; }
  };
  struct Contents {
    std::vector<Entry> entries;  // by their ends, oldest first
    bool dropped = false;        // older ones were overwritten
  };
  [[nodiscard]] Contents read() const;

  void clear() noexcept { first_ = head_.load(std::memory_order_relaxed); }
  [[nodiscard]] int thread_id() const noexcept { return thread_id_; }
  static constexpr std::size_t bytes_of(std::size_t records) noexcept {
    return records * kWords * sizeof(std::uint64_t);
  }

 private:
  static constexpr std::size_t kWords = 6;
  struct Free {
    void operator()(std::uint64_t* words) const noexcept { std::free(words); }
  };

  [[nodiscard]] std::atomic_ref<std::uint64_t> word(std::uint64_t at,
                                                    std::size_t i) const noexcept {
    return std::atomic_ref(words_.get()[(at & mask_) * kWords + i]);
  }

  std::unique_ptr<std::uint64_t, Free> words_;
  std::uint64_t mask_;
  int thread_id_;
  std::uint64_t first_ = 0;
  std::atomic<std::uint64_t> head_{0};
};

struct ThreadName {
  int thread_id;
  std::string name;
};

/// The time in which records were taken since the last clear(); ended_ns is 0 while they still are.
struct Period {
  std::int64_t began_ns = 0;  // 0: never
  std::int64_t ended_ns = 0;
};

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Ring>> rings;
  std::vector<ThreadName> names;
  Options options;
  Period period;
};
[[nodiscard]] Registry& registry();
/// Returns the rank that set_rank() set; -1 if it was not called.
[[nodiscard]] int process_rank() noexcept;

}  // namespace tandem::trace::detail
