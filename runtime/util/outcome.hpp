// runtime/util/outcome.hpp — nothing yet, a value, or an exception: what a task, a reply or a
// completion ends with.
//
// One thread at a time uses it (its owner sees to that). take() moves the value out, or rethrows.
#pragma once

#include <exception>
#include <memory>
#include <type_traits>
#include <utility>

#include "runtime/util/check.hpp"

namespace tandem {

template <class T>
class Outcome {
  struct Unit {};
  static constexpr bool kIsReference = std::is_lvalue_reference_v<T>;
  // A reference is stored as a pointer, void as an empty object.
  using Stored = std::conditional_t<
      std::is_void_v<T>, Unit,
      std::conditional_t<kIsReference, std::add_pointer_t<std::remove_reference_t<T>>, T>>;

 public:
  Outcome() noexcept {}
  Outcome(const Outcome&) = delete;
  Outcome& operator=(const Outcome&) = delete;
  Outcome(Outcome&& other) noexcept(std::is_nothrow_move_constructible_v<Stored>) { steal(other); }
  ~Outcome() { clear(); }

  [[nodiscard]] bool empty() const noexcept { return state_ == State::kEmpty; }
  [[nodiscard]] bool failed() const noexcept { return state_ == State::kError; }

  template <class... Args>
  void set_value(Args&&... args) {
    clear();
    set_first(std::forward<Args>(args)...);
  }
  /// Does what set_value() does, for an outcome that is still empty.
  template <class... Args>
  void set_first(Args&&... args) {
    if constexpr (kIsReference) {
      std::construct_at(&value_, std::addressof(args)...);
    } else {
      std::construct_at(&value_, std::forward<Args>(args)...);
    }
    state_ = State::kValue;
  }

  void set_error(std::exception_ptr error) noexcept {
    clear();
    std::construct_at(&error_, std::move(error));
    state_ = State::kError;
  }

  [[nodiscard]] const std::exception_ptr& error() const noexcept { return error_; }

  T take() {
    if (state_ == State::kError) [[unlikely]] {
      rethrow();
    }
    TANDEM_CHECK(state_ == State::kValue, "the result was taken before it was there");
    if constexpr (std::is_void_v<T>) {
      return;
    } else if constexpr (kIsReference) {
      return *value_;
    } else {
      return std::move(value_);
    }
  }

  /// Takes over the content of `other`.
  void assign(Outcome&& other) {
    clear();
    steal(other);
  }

 private:
  enum class State : unsigned char { kEmpty, kValue, kError };

  // Out of line, so that the usual way needs no registers for it.
  [[noreturn, gnu::noinline, gnu::cold]] void rethrow() const { std::rethrow_exception(error_); }

  void steal(Outcome& other) {
    if (other.state_ == State::kValue) {
      std::construct_at(&value_, std::move(other.value_));
    } else if (other.state_ == State::kError) {
      std::construct_at(&error_, std::move(other.error_));
    }
    state_ = other.state_;
  }

  void clear() noexcept {
    if (state_ == State::kValue) {
      std::destroy_at(&value_);
    } else if (state_ == State::kError) {
      std::destroy_at(&error_);
    }
    state_ = State::kEmpty;
  }

  union {
    Stored value_;
    std::exception_ptr error_;
  };
  State state_ = State::kEmpty;
};

/// Runs `fn` and stores what it returns or throws.
template <class T, class Fn>
void capture(Outcome<T>& outcome, Fn&& fn) noexcept {
  try {
    if constexpr (std::is_void_v<T>) {
      std::forward<Fn>(fn)();
      outcome.set_value();
    } else {
      outcome.set_value(std::forward<Fn>(fn)());
    }
  } catch (...) {
    outcome.set_error(std::current_exception());
  }
}

}  // namespace tandem
