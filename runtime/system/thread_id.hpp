// runtime/system/thread_id.hpp — a number for the calling thread, which no other thread of the
// process ever gets.
//
// The address of a thread_local does not tell threads apart that follow each other: the next thread
// may get the same memory. Any thread.
#pragma once

#include <cstdint>

namespace tandem {

/// Returns the calling thread's number; it is never 0.
[[nodiscard]] std::uint64_t this_thread_id() noexcept;

}  // namespace tandem
