// engine/tensors/unit.hpp — one unit's parameters as tensors whose memory changes from visit to
// visit.
//
// The weights of a unit are views over one flat storage that owns nothing. bind_values() points
// that storage at the slot into which the unit was gathered, unbind_values() at null; the same for
// the gradients. The tensors, and those that autograd saved, stay valid: rebinding costs one
// pointer store for any number of parameters.
// Invariant: a weight's data is accessed only while bound. Unbound storages have a null pointer, so
// a wrong access faults at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "actors/kernels/dtype.hpp"
#include "engine/layout/parameter_layout.hpp"
#include "engine/tensors/segment.hpp"

namespace tandem {

/// A flat tensor whose storage can be pointed at memory owned by someone else. Compute lane only.
class FlatBlock {
 public:
  /// Makes a tensor on that device, without memory before bind().
  FlatBlock(std::int64_t numel, DType type, at::Device device);
  /// Elements [begin, begin + numel of shape) as a tensor of `shape` over this block's storage.
  [[nodiscard]] at::Tensor view(std::int64_t begin, const std::vector<std::int64_t>& shape) const;
  /// `data` must stay valid for numel elements until unbind() or the next bind().
  void bind(std::byte* data);
  void unbind();
  [[nodiscard]] std::byte* data() const noexcept { return data_; }

 private:
  at::Tensor flat_;
  at::Device device_;
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

/// The tensors of one unit. Compute lane only; bind and unbind nest by use (tied weights, forward
/// next to backward).
class Unit {
 public:
  /// `device`: that of the memory to which it will be bound.
  Unit(const UnitSpec& spec, const ParameterLayout& layout, DType type,
       at::Device device = at::kCPU);
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  [[nodiscard]] Weight& weight(std::size_t parameter) { return weights_[parameter]; }

  void bind_values(std::byte* slot) { values_.bind(slot); }
  void unbind_values() { values_.unbind(); }

  /// Points the gradients at a gradient slot. `fresh`: no visit of this micro-step has written to
  /// it yet.
  void bind_gradients(std::byte* slot, bool fresh);
  /// Copies gradients that plain autograd accumulated into the block. Call it after a segment's
  /// backward.
  void collect_autograd_gradients();
  /// Zero-fills gradients that no segment wrote, those of frozen parameters, and gaps, then
  /// unbinds: the slot is complete. `padding`: also fills the padding after the last parameter,
  /// which the host cannot do on a device.
  void complete_gradients(bool padding);
  void unbind_gradients();

 private:
  FlatBlock values_;
  FlatBlock gradients_;
  std::vector<Weight> weights_;
  std::vector<bool> frozen_;      // [parameter]
  std::vector<at::Tensor> gaps_;  // of the gradients, between parameters
  at::Tensor padding_;            // likewise, after the last parameter
};

}  // namespace tandem
