// tests/model/memory.hpp — the memory that a modelled program runs on: atomics, plain variables, a
// futex.
//
// ModelAtomics stands in for runtime/util/atomics.hpp's StdAtomics. Weakened<...> is the same with
// an order taken away, to see that the checker misses it. The semantics are those of checker.hpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "tests/model/checker.hpp"

namespace tandem::model {

namespace detail {

struct Location;  // the checker's; outlives its atomic, so that later uses are found
Location* new_location(std::uint64_t value);
void end_location(Location* location) noexcept;
std::uint64_t load(Location* location, std::memory_order order) noexcept;
void store(Location* location, std::uint64_t value, std::memory_order order) noexcept;
/// One step: reads the newest value; when `change(value, argument)` says so, writes what it left in
/// `value`.
using Change = bool (*)(std::uint64_t& value, void* argument);
std::uint64_t read_modify_write(Location* location, std::memory_order success,
                                std::memory_order failure, Change change, void* argument) noexcept;
void futex_wait(Location* location, std::uint64_t seen) noexcept;
void futex_wake(Location* location) noexcept;

struct Shadow;  // the reads and writes of a plain variable, by thread and time
Shadow* new_shadow();
void plain_read(Shadow* shadow) noexcept;
void plain_write(Shadow* shadow) noexcept;

}  // namespace detail

/// The half of a memory order that a weakened program takes away.
enum class Weaken { kNothing, kAcquire, kRelease };

template <class T, Weaken kWeaken = Weaken::kNothing>
class Atomic {
 public:
  Atomic(T value) noexcept : location_(detail::new_location(to_word(value))) {}
  ~Atomic() { detail::end_location(location_); }
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;

  T load(std::memory_order order) const noexcept {
    return from_word(detail::load(location_, weak(order)));
  }
  void store(T value, std::memory_order order) noexcept {
    detail::store(location_, to_word(value), weak(order));
  }
  T exchange(T value, std::memory_order order) noexcept {
    return change(order, order, [value](T& now) {
      now = value;
      return true;
    });
  }
  bool compare_exchange_strong(T& expected, T desired, std::memory_order success,
                               std::memory_order failure) noexcept {
    bool done = false;
    const T seen = change(success, failure, [&](T& now) {
      done = now == expected;
      now = desired;
      return done;
    });
    expected = done ? expected : seen;
    return done;
  }
  bool compare_exchange_strong(T& expected, T desired, std::memory_order order) noexcept {
    return compare_exchange_strong(expected, desired, order, std::memory_order_relaxed);
  }
  bool compare_exchange_weak(T& expected, T desired, std::memory_order success,
                             std::memory_order failure) noexcept {
    return compare_exchange_strong(expected, desired, success, failure);
  }
  bool compare_exchange_weak(T& expected, T desired, std::memory_order order) noexcept {
    return compare_exchange_strong(expected, desired, order);
  }
  T fetch_add(T by, std::memory_order order) noexcept {
    return change(order, order, [by](T& now) {
      now = now + by;
      return true;
    });
  }
  T fetch_or(T bits, std::memory_order order) noexcept {
    return change(order, order, [bits](T& now) {
      now = now | bits;
      return true;
    });
  }
  void wait_while(T seen) noexcept { detail::futex_wait(location_, to_word(seen)); }
  void wake_one() noexcept { detail::futex_wake(location_); }

 private:
  static_assert(sizeof(T) <= sizeof(std::uint64_t));

  template <class Fn>
  T change(std::memory_order success, std::memory_order failure, Fn fn) noexcept {
    return from_word(detail::read_modify_write(
        location_, weak(success), weak(failure),
        [](std::uint64_t& word, void* argument) {
          T value = from_word(word);
          const bool write = (*static_cast<Fn*>(argument))(value);
          word = to_word(value);
          return write;
        },
        &fn));
  }
  static std::memory_order weak(std::memory_order order) noexcept {
    const bool acquires = kWeaken != Weaken::kAcquire && (order == std::memory_order_acquire ||
                                                          order == std::memory_order_acq_rel);
    const bool releases = kWeaken != Weaken::kRelease && (order == std::memory_order_release ||
                                                          order == std::memory_order_acq_rel);
    return acquires && releases ? std::memory_order_acq_rel
           : acquires           ? std::memory_order_acquire
           : releases           ? std::memory_order_release
                                : std::memory_order_relaxed;
  }
  static std::uint64_t to_word(T value) noexcept {
    std::uint64_t word = 0;
    std::memcpy(&word, &value, sizeof(T));
    return word;
  }
  static T from_word(std::uint64_t word) noexcept {
    T value;
    std::memcpy(&value, &word, sizeof(T));
    return value;
  }

  detail::Location* location_;
};

template <Weaken kWeaken>
struct WeakenedAtomics {
  template <class T>
  using Atomic = model::Atomic<T, kWeaken>;
  static void wait(Atomic<int>& word, int seen) noexcept { word.wait_while(seen); }
  /// The time comes when another thread sets `alarm`; only a thread that does not sleep yet looks,
  /// which is when a time that comes during the sleep might as well have come.
  static bool wait_until(Atomic<int>& word, int seen, model::Atomic<int>* alarm) noexcept {
    if (alarm->exchange(0, std::memory_order_relaxed) != 0) {
      return false;
    }
    word.wait_while(seen);
    return true;
  }
  static void wake_one(Atomic<int>& word) noexcept { word.wake_one(); }
};
using ModelAtomics = WeakenedAtomics<Weaken::kNothing>;

/// A variable that is not atomic.
template <class T>
class Plain {
 public:
  Plain(T value = T()) noexcept : value_(value), shadow_(detail::new_shadow()) {}
  Plain(const Plain&) = delete;
  Plain& operator=(const Plain&) = delete;
  Plain& operator=(T value) noexcept {
    detail::plain_write(shadow_);
    value_ = value;
    return *this;
  }
  operator T() const noexcept {
    detail::plain_read(shadow_);
    return value_;
  }

 private:
  T value_;
  detail::Shadow* shadow_;
};

}  // namespace tandem::model
