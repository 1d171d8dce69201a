// engine/tensors/unit.hpp — one unit's parameters as tensors over memory that comes and goes.
//
// The weights of a unit are views over one flat storage that owns nothing. bind_values() points
// that storage at the slot into which the unit was gathered, unbind_values() at nothing; the same
// for the gradients. The tensors themselves, and what autograd saved of them, live on: rebinding
// costs one pointer store however many parameters there are.
// Invariant: a weight's data is touched only while bound. Unbound storages hold a null pointer, so
// a slip faults at once.
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
  /// On that device; it has no memory before bind().
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
  /// `device`: of the memory that it is bound to.
  Unit(const UnitSpec& spec, const ParameterLayout& layout, DType type,
       at::Device device = at::kCPU);
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  [[nodiscard]] Weight& weight(std::size_t parameter) { return weights_[parameter]; }

  void bind_values(std::byte* slot) { values_.bind(slot); }
  void unbind_values() { values_.unbind(); }

  /// Points the gradients at a gradient slot. `fresh`: nothing of this micro-step is in it yet.
  void bind_gradients(std::byte* slot, bool fresh);
  /// Moves what plain autograd accumulated into the block; after a segment's backward.
  void collect_autograd_gradients();
  /// Zero-fills what no segment wrote (parameters left without a gradient, gaps) or is frozen, and
  /// unbinds: the slot is complete. `padding`: what lies behind the last parameter, too, since the
  /// host does not reach it.
  void complete_gradients(bool padding);
  void unbind_gradients();

 private:
  FlatBlock values_;
  FlatBlock gradients_;
  std::vector<Weight> weights_;
  std::vector<bool> frozen_;      // [parameter]
  std::vector<at::Tensor> gaps_;  // of the gradients, between parameters
  at::Tensor padding_;            // likewise, behind the last
};

}  // namespace tandem
