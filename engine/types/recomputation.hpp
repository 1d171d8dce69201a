// engine/types/recomputation.hpp — tells operations whether the running forward is a recomputation
// for its backward.
//
// Activation checkpointing runs a segment's forward a second time just before its backward, and
// nothing reads the segment's output then. So an operation may keep less memory than in a first
// forward, and the last operation may skip its result. The memory plan asks segments for their
// figures in the same mode. Any thread; the mode is the calling thread's.
#pragma once

namespace tandem {

[[nodiscard]] bool is_recomputation() noexcept;

/// While one lives, its thread's operations count as a recomputation, if the constructor's argument
/// says so.
class RecomputationGuard {
 public:
  explicit RecomputationGuard(bool wanted) noexcept;
  ~RecomputationGuard();
  RecomputationGuard(const RecomputationGuard&) = delete;
  RecomputationGuard& operator=(const RecomputationGuard&) = delete;

 private:
  bool before_;
};

}  // namespace tandem
