// tests/support/uncounted.hpp — leaves a fake's allocations out of those of the code under test.
#pragma once

namespace tandem::test {

inline thread_local int t_uncounted = 0;

/// While it lives, a test's counting operator new does not count on this thread.
struct Uncounted {
  Uncounted() noexcept { ++t_uncounted; }
  ~Uncounted() { --t_uncounted; }
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;
};

}  // namespace tandem::test
