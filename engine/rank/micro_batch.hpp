// engine/rank/micro_batch.hpp — a micro-batch as the schedule sees it: the work of each visit.
//
// TrainStep decides when a visit runs and over which memory; a MicroBatch does the work.
// TensorBatch (engine/tensors/tensor_batch.hpp) computes with tensors; the simulator has one that
// computes with plain numbers.
// Boundary b is the input of segment b: segment b - 1's forward makes it, and activation
// checkpointing keeps it until segment b's backward (boundaries.hpp says where).
// Thread rule: the compute lane, except extents() and bad_activation(). On a GPU the functions are
// called in the order of the queued work, possibly only when the stream reaches them.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "engine/layout/step_plan.hpp"
#include "engine/metrics/module_profile.hpp"

namespace tandem {

/// The place of an element that is not finite: a segment's output (forward), or the gradient of its
/// input (backward).
struct BadActivation {
  std::size_t segment = 0;
  Phase phase = Phase::kForward;
};

/// The memory of a visit's units; all of it lies where the visit is computed.
struct VisitMemory {
  std::span<const UnitUse> uses;
  std::span<std::byte* const> weights;         // [use], gathered
  std::span<std::byte* const> gradients = {};  // [unit] gradient slots of a backward
};

class MicroBatch {
 public:
  virtual ~MicroBatch() = default;
  [[nodiscard]] virtual BatchExtents extents() const = 0;

  /// Runs segment `s` on the output of segment s - 1.
  virtual void forward(std::size_t s, const VisitMemory& memory) = 0;
  /// Call it after the last segment's forward: writes the loss to `to`; on a GPU the loss is there
  /// when the queued work is done.
  virtual void read_loss(float* to) = 0;
  /// Runs the backward of segment `s`; segments come in falling order. `loss_gradient`:
  /// d(objective)/d(loss). Adds the gradients of weights to the slots; a slot is complete after the
  /// last visit that adds to it (UnitUse::last_gradient).
  virtual void backward(std::size_t s, const VisitMemory& memory, double loss_gradient) = 0;
  /// Runs segment `s` without keeping anything for a backward.
  virtual void infer(std::size_t s, const VisitMemory& memory) = 0;
  /// Returns the first activation that is not finite, if the micro-batch looks for it.
  [[nodiscard]] virtual std::optional<BadActivation> bad_activation() const { return std::nullopt; }

  // ---- offloaded boundaries ----
  /// Returns the bytes of boundary `b`; call it after segment b - 1's forward.
  [[nodiscard]] virtual std::size_t boundary_bytes(std::size_t b) const = 0;
  /// Returns the memory of boundary `b`, valid until free_boundary(); empty if it is not a dense
  /// tensor. Call it after segment b - 1's forward.
  [[nodiscard]] virtual std::span<std::byte> keep_boundary(std::size_t b) = 0;
  /// Frees the memory of boundary `b`, whose bytes were copied away.
  virtual void free_boundary(std::size_t b) = 0;
  /// Returns the memory into which boundary `b` is to be copied back: `room`, or memory that it
  /// allocates if `room` is null.
  [[nodiscard]] virtual std::span<std::byte> make_boundary(std::size_t b, std::byte* room) = 0;
  /// Hands boundary `b`, which was copied back, to segment b's backward.
  virtual void take_boundary(std::size_t b) = 0;
};

}  // namespace tandem
