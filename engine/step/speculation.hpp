// engine/step/speculation.hpp — decides whether a step's updates begin before its verdict.
//
// Beginning them assumes that the verdict will be "apply as is": all gradients are finite, and the
// norm is within the clipping limit. If the verdict differs, the updates that had begun are redone
// or rolled back, so `auto` speculates only while few of the last verdicts differed. Every verdict
// counts, also that of a step without speculation, so speculation resumes by itself when clipping
// has become rare.
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

  /// Whether the step that begins now should speculate.
  [[nodiscard]] bool worthwhile() const noexcept {
    return mode_ == Speculate::kOn ||
           (mode_ == Speculate::kAuto && std::popcount(lost_) <= kLostAllowed);
  }
  /// Records a step's verdict. `lost`: it undid speculative updates, or would have undone them.
  void record(bool lost) noexcept {
    lost_ = static_cast<std::uint16_t>(lost_ << 1U | (lost ? 1U : 0U));
  }
  /// Return and set the last 16 verdicts, which a checkpoint keeps.
  [[nodiscard]] std::uint16_t history() const noexcept { return lost_; }
  void restore(std::uint16_t history) noexcept { lost_ = history; }

 private:
  static constexpr int kLostAllowed = 3;  // of the last 16

  Speculate mode_;
  std::uint16_t lost_ = 0;  // one bit per verdict; the lowest bit is the newest
};

}  // namespace tandem
