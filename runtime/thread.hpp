// runtime/thread.hpp — makes, names, pins and counts the runtime's threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace tandem::thread {

/// A thread that runs `body`: number `number` (from 0) of the `of` that `owner` makes. Throws
/// Error(kRefused), with the limits in words, where the system makes no more; the caller ends those
/// that it has.
[[nodiscard]] std::thread start(const std::string& owner, int number, int of,
                                std::function<void()> body);

/// Names the calling thread (the kernel keeps 15 characters; the trace keeps all). Call it before
/// anything is traced.
void set_name(const std::string& name);

/// Binds the calling thread to one CPU. False if the CPU is not ours to use.
[[nodiscard]] bool pin_to(int cpu) noexcept;

/// The calling thread's wake-ups no longer preempt what runs; its share of the CPU stays
/// (SCHED_BATCH). A lower priority would starve it, and those that wait for its work, whenever
/// another process is busy.
void set_background() noexcept;

/// The calling thread's sleeps end when they are to, not up to 50 us later (the kernel's slack, for
/// those that may wait for others).
void set_punctual() noexcept;

/// CPU time of the calling thread.
[[nodiscard]] std::int64_t cpu_now_ns() noexcept;

/// Counts this thread, or the team of threads that it computes with, among those that compute,
/// while it does: an idle thread spins only if a CPU is left over.
void enter_runtime(int threads = 1) noexcept;
void leave_runtime(int threads = 1) noexcept;
/// Other processes run on the rest of those that this one may use.
void limit_cpus(int cpus) noexcept;
/// Usable CPUs, at most the limit, minus counted threads; may be negative.
[[nodiscard]] int spare_cpus() noexcept;

}  // namespace tandem::thread
