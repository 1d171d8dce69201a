// tests/support/uncounted.hpp — what a fake allocates is not what the code under test allocates.
#pragma once

namespace tandem::testing {

inline thread_local int t_uncounted = 0;

/// While it lives, a test's counting operator new does not count on this thread.
struct Uncounted {
  Uncounted() noexcept { ++t_uncounted; }
  ~Uncounted() { --t_uncounted; }
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;
};

}  // namespace tandem::testing
