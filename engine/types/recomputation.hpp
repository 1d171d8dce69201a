// engine/types/recomputation.hpp — whether a forward runs again for its backward alone.
//
// Activation checkpointing runs a segment's forward a second time ahead of its backward, and what
// the segment then returns is not read. So an operation may keep less than in a forward whose
// backward is far, and one whose result is the segment's may leave that unmade. The memory plan
// asks segments for their figures in the same mode. Any thread; the mode is the calling thread's.
#pragma once

namespace tandem {

[[nodiscard]] bool is_recomputation() noexcept;

/// While one lives, what its thread runs is a recomputation, if that is wanted.
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
