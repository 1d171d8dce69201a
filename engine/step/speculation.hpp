// engine/step/speculation.hpp — whether a step's updates are begun ahead of its verdict.
//
// Beginning them is a bet that the verdict will be "apply as is": all finite, and the norm within
// the clipping limit. A lost bet costs a second update of what had begun, so `auto` bets while few
// of the last verdicts would have lost. Every verdict counts, that of a step without a bet too; so
// betting resumes by itself when clipping has become rare.
// Invariant: the decision follows from verdicts alone, which are the same on all ranks. It changes
// no number.
#pragma once

#include <bit>
#include <cstdint>

#include "engine/types/options.hpp"

namespace tandem {

class Speculation {
 public:
  explicit Speculation(Speculate mode) noexcept : mode_(mode) {}

  /// Whether the step that begins now should bet.
  [[nodiscard]] bool worthwhile() const noexcept {
    return mode_ == Speculate::kOn ||
           (mode_ == Speculate::kAuto && std::popcount(lost_) <= kLostAllowed);
  }
  /// Takes note of a step's verdict: whether a bet was lost, or would have been.
  void record(bool lost) noexcept {
    lost_ = static_cast<std::uint16_t>(lost_ << 1U | (lost ? 1U : 0U));
  }
  /// The last 16 verdicts, for a checkpoint, and back.
  [[nodiscard]] std::uint16_t history() const noexcept { return lost_; }
  void restore(std::uint16_t history) noexcept { lost_ = history; }

 private:
  static constexpr int kLostAllowed = 3;  // of the last 16

  Speculate mode_;
  std::uint16_t lost_ = 0;  // one bit a verdict, the newest lowest
};

}  // namespace tandem
