// tests/model/fiber.hpp — one stack of its own, entered and left by hand: the threads that the
// model checker runs.
//
// Tells AddressSanitizer about each switch; not for ThreadSanitizer (tests/CMakeLists.txt says
// why). Thread rule: all fibers of a checker run on one thread.
#pragma once

#include <functional>
#include <memory>

#include <ucontext.h>

namespace tandem::model {

class Fiber {
 public:
  Fiber();  // one to run functions on
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// The fiber that stands for the thread it is called on.
  static std::unique_ptr<Fiber> of_this_thread();

  /// From the next switch on it runs `body`, from its beginning; what ran on it before is
  /// forgotten. `body` must not return: it switches away permanently.
  void restart(void (*body)());
  void switch_to(Fiber& other);

 private:
  explicit Fiber(int);
  static void enter();

  ucontext_t context_{};
  std::unique_ptr<char[]> stack_;
  void (*body_)() = nullptr;
  [[maybe_unused]] void* fake_stack_ = nullptr;  // AddressSanitizer's
  const void* stack_begin_ = nullptr;
  [[maybe_unused]] std::size_t stack_bytes_ = 0;
};

}  // namespace tandem::model
