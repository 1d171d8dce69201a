// engine/rank/micro_batch.hpp — a micro-batch as the schedule sees it: the work of each visit.
//
// TrainStep decides when a visit runs and over which memory; a MicroBatch does the work.
// engine/tensors/tensor_batch.hpp computes with tensors, the simulator's with plain numbers.
// Boundary b is the input of segment b: it is made by segment b - 1's forward, and by activation
// checkpointing kept until segment b's backward (boundaries.hpp says where).
// Thread rule: the compute lane, but for extents() and bad_activation(). On a GPU the work is
// called behind the queued work before it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "engine/layout/step_plan.hpp"
#include "engine/metrics/module_profile.hpp"

namespace tandem {

/// An element that is not finite: in a segment's output, or in the gradient of its input.
struct BadActivation {
  std::size_t segment = 0;
  Phase phase = Phase::kForward;
};

/// The memory of a visit's units.
struct VisitMemory {
  std::span<const UnitUse> uses;
  std::span<std::byte* const> weights;         // [use], gathered
  std::span<std::byte* const> gradients = {};  // [unit] of a backward: the gradient slots
};

class MicroBatch {
 public:
  virtual ~MicroBatch() = default;
  [[nodiscard]] virtual BatchExtents extents() const = 0;

  /// Runs segment `s` on the output of segment s - 1.
  virtual void forward(std::size_t s, const VisitMemory& memory) = 0;
  /// Behind the last segment's forward: writes the loss to `to`, on a GPU when its queued work is
  /// done.
  virtual void read_loss(float* to) = 0;
  /// Runs the backward of segment `s`; segments come in falling order. `loss_gradient`:
  /// d(objective)/d(loss). Adds the gradients of weights to the slots, which are whole where no
  /// later visit adds to them (UnitUse::last_gradient).
  virtual void backward(std::size_t s, const VisitMemory& memory, double loss_gradient) = 0;
  /// Runs segment `s` for no backward.
  virtual void infer(std::size_t s, const VisitMemory& memory) = 0;
  /// Returns the first activation that is not finite, where it was looked for.
  [[nodiscard]] virtual std::optional<BadActivation> bad_activation() const { return std::nullopt; }

  // ---- boundaries that lie elsewhere for a while ----
  /// Returns the bytes of boundary `b`, behind segment b - 1's forward.
  [[nodiscard]] virtual std::size_t boundary_bytes(std::size_t b) const = 0;
  /// Likewise returns the memory of boundary `b`, which stays until free_boundary(); empty: it is
  /// no dense tensor.
  [[nodiscard]] virtual std::span<std::byte> keep_boundary(std::size_t b) = 0;
  /// Lets go of boundary `b`, whose bytes lie elsewhere.
  virtual void free_boundary(std::size_t b) = 0;
  /// Makes memory for boundary `b` to come back to: `room`, or where that is null memory of its
  /// own.
  [[nodiscard]] virtual std::span<std::byte> make_boundary(std::size_t b, std::byte* room) = 0;
  /// Gives boundary `b`, which has come back, to segment b's backward.
  virtual void take_boundary(std::size_t b) = 0;
};

}  // namespace tandem
