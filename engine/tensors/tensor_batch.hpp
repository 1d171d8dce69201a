// engine/tensors/tensor_batch.hpp — a micro-batch that is computed with ATen: the visits of a step,
// or of an inference, run it on the compute lane.
//
// Invariant: outside of a visit no tensor of a unit has memory.
// Thread rule: as MicroBatch; made and read on the loop's thread, while no visit of it is running.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/rank/micro_batch.hpp"
#include "engine/tensors/segment.hpp"
#include "engine/tensors/segment_runner.hpp"
#include "engine/tensors/unit.hpp"

namespace tandem {

/// Computes micro-batches; outlives them.
struct TensorUnits {
  std::span<const std::unique_ptr<Unit>> units;  // [unit]
  const SegmentRunner* runner = nullptr;
  bool on_gpu = false;
};

class TensorBatch final : public MicroBatch {
 public:
  /// `batch` lies on the device of the segments. `looks`: looks for the first activation that is
  /// not finite, which reads all activations. `output`: of infer().
  TensorBatch(const TensorUnits& units, Batch batch, bool looks,
              HeadOutput output = HeadOutput::kLoss);

  [[nodiscard]] BatchExtents extents() const override { return extents_; }
  void forward(std::size_t s, const VisitMemory& memory) override;
  void read_loss(float* to) override;
  void backward(std::size_t s, const VisitMemory& memory, double loss_gradient) override;
  void infer(std::size_t s, const VisitMemory& memory) override;
  [[nodiscard]] std::optional<BadActivation> bad_activation() const override {
    return activations_.bad;
  }

  [[nodiscard]] std::size_t boundary_bytes(std::size_t b) const override;
  [[nodiscard]] std::span<std::byte> keep_boundary(std::size_t b) override;
  void free_boundary(std::size_t b) override;
  [[nodiscard]] std::span<std::byte> make_boundary(std::size_t b, std::byte* room) override;
  void take_boundary(std::size_t b) override;

  /// Returns the last segment's output of an inference, on the device.
  [[nodiscard]] const at::Tensor& result() const noexcept { return result_; }

 private:
  /// A boundary that is offloaded, or is being copied.
  struct Kept {
    at::Tensor tensor;  // while it is here
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    at::TensorOptions type;
  };

  const TensorUnits& units_;
  Batch batch_;
  BatchExtents extents_;
  HeadOutput output_;
  SegmentRunner::Activations activations_;
  std::vector<Kept> kept_;  // [boundary]
  at::Tensor result_;
};

}  // namespace tandem
