// See allocations.hpp.
#include "tests/actors/allocations.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/support/uncounted.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TANDEM_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TANDEM_TEST_SANITIZED 1
#endif
#endif

namespace {
std::atomic<std::int64_t> g_allocations{0};
}

// Under a sanitizer its own operators stay, and the runtime's pools reuse nothing: there is nothing
// to count.
#ifndef TANDEM_TEST_SANITIZED
void* operator new(std::size_t bytes) {
  if (tandem::test::t_uncounted == 0) {
    g_allocations.fetch_add(1, std::memory_order_relaxed);
  }
  if (void* block = std::malloc(bytes)) {
    return block;
  }
  throw std::bad_alloc();
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
#endif

namespace tandem::test {
std::int64_t allocations() noexcept { return g_allocations.load(); }
bool allocations_are_counted() noexcept {
#ifdef TANDEM_TEST_SANITIZED
  return false;
#else
  return true;
#endif
}
}  // namespace tandem::test
