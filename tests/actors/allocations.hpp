// tests/actors/allocations.hpp — how often this binary has called operator new, of any thread,
// fakes left out.
#pragma once

#include <cstdint>

namespace tandem::test {

[[nodiscard]] std::int64_t allocations() noexcept;
/// False under a sanitizer, whose own operators stay.
[[nodiscard]] bool allocations_are_counted() noexcept;

}  // namespace tandem::test
