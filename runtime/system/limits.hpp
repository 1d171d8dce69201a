// runtime/system/limits.hpp — what the system allows this process and its children: threads, stack,
// files, memory; and whether it killed some of them. Any thread; read anew at each call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tandem::limits {

/// Returns how many processes of this control group the kernel has killed for want of memory so
/// far.
[[nodiscard]] std::uint64_t oom_kills();
/// Returns the smallest memory limit of this control group and those around it; nullopt if none has
/// one.
[[nodiscard]] std::optional<std::uint64_t> memory_bytes();

/// Throws Error(kRefused), naming the limit, unless `threads` more threads can be made now; it
/// makes them and ends them at once. `use_fewer` is the flag that asks for fewer.
void require_threads(int threads, const std::string& use_fewer);
/// The limits on threads, in words: "pids.max 6 of the control group (6 in use), ulimit -u 96000".
[[nodiscard]] std::string threads_text();

/// Throws Error(kRefused) if a thread gets less stack than a step needs.
void require_stack();
/// RLIMIT_STACK; UINT64_MAX: no limit.
[[nodiscard]] std::uint64_t stack_bytes();

/// Throws Error(kRefused) if fewer files may be open than a rank with its reports needs.
void require_files();

}  // namespace tandem::limits
