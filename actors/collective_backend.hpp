// actors/collective_backend.hpp — what Collectives issues its operations on: `self` (world 1) here; processes of one
// host and NCCL are further implementations of the same interface.
//
// Contract: Collectives calls from the loop thread, and never has more than one gather and one reduction under way; a
// returned task ends when the result is in place. Work of any length happens off the loop. An exception means that the
// communicator is unusable from then on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "actors/dtype.hpp"
#include "actors/kernels/reduce.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/task.hpp"

namespace tandem {

/// Every rank's shard, in rank order, into the whole block of each rank.
struct GatherArguments {
  const std::byte* shard = nullptr;  // this rank's slice, read until the task ends
  std::byte* block = nullptr;        // world * shard_bytes, written until the task ends
  std::size_t shard_bytes = 0;
};

/// accumulator = or += the sum over ranks, added in rank order, of this rank's slice of every rank's block.
struct ReduceArguments {
  const std::byte* block = nullptr;  // world * shard_elements, read until the task ends
  DType block_type = DType::kF32;
  void* accumulator = nullptr;  // shard_elements, written until the task ends
  // kBF16 only where nothing is ever added in it: world 1, bf16 blocks, mode kOverwrite. The values are then the
  // gradient's own, bit for bit, at half the memory traffic of fp32.
  DType accumulator_type = DType::kF32;
  std::size_t shard_elements = 0;  // a multiple of kNormBlock
  AccumulateMode mode = AccumulateMode::kOverwrite;
  bool want_norm = false;  // also the norm of the result; bad elements are indices into the shard
};

class CollectiveBackend {
 public:
  virtual ~CollectiveBackend() = default;

  [[nodiscard]] virtual std::uint32_t world() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t rank() const noexcept = 0;

  virtual Task<> all_gather(GatherArguments arguments) = 0;
  virtual Task<GradientNorm> reduce_scatter_add(ReduceArguments arguments) = 0;
  /// The merge of every rank's norm; the same bits on all ranks.
  virtual Task<GradientNorm> all_reduce_norm(GradientNorm local) = 0;
};

/// World 1. A gather is a copy, a reduction an accumulation; both run on `pool` in chunks, so all of its threads help.
class SelfBackend final : public CollectiveBackend {
 public:
  explicit SelfBackend(CpuPool& pool) : pool_(&pool) {}

  [[nodiscard]] std::uint32_t world() const noexcept override { return 1; }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return 0; }

  Task<> all_gather(GatherArguments arguments) override;
  Task<GradientNorm> reduce_scatter_add(ReduceArguments arguments) override;
  Task<GradientNorm> all_reduce_norm(GradientNorm local) override;

 private:
  CpuPool* pool_;
  std::vector<GradientNorm>
      parts_;  // of the reduction under way, one per chunk; kept, so that nothing is allocated
};

}  // namespace tandem
