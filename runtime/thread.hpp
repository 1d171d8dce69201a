// runtime/thread.hpp — makes, names, pins and counts the runtime's threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace tandem::thread {

/// Makes a thread that runs `body`: the thread `number` (from 0) of the `of` threads that `owner`
/// makes. Throws Error(kRefused), with the limits in words, if the system makes no more threads;
/// the caller then ends those that it has.
[[nodiscard]] std::thread start(const std::string& owner, int number, int of,
                                std::function<void()> body);

/// Names the calling thread (the kernel keeps 15 characters; the trace keeps all). Call it before
/// anything is traced.
void set_name(const std::string& name);

/// Binds the calling thread to one CPU. Returns false if this process may not use that CPU.
[[nodiscard]] bool pin_to(int cpu) noexcept;

/// From now on the calling thread's wake-ups do not preempt running threads; its share of the CPU
/// stays (SCHED_BATCH). A lower priority would starve it, and the threads that wait for its work,
/// whenever another process is busy.
void set_background() noexcept;

/// Makes the calling thread's sleeps end on time, not up to 50 us later (the kernel's default
/// slack).
void set_punctual() noexcept;

/// CPU time of the calling thread.
[[nodiscard]] std::int64_t cpu_now_ns() noexcept;

/// Count this thread, or the team of `threads` that it computes with, among the computing threads,
/// from the one call to the other: an idle thread spins only if a CPU is left over.
void enter_runtime(int threads = 1) noexcept;
void leave_runtime(int threads = 1) noexcept;
/// Limits this process to `cpus` of its usable CPUs in this count, because other processes run on
/// the rest.
void limit_cpus(int cpus) noexcept;
/// Returns the usable CPUs, at most the limit, minus the counted threads; may be negative.
[[nodiscard]] int spare_cpus() noexcept;

}  // namespace tandem::thread
