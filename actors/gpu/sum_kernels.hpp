// actors/gpu/sum_kernels.hpp — a table of functions that add gradients on a GPU, with their exact
// norm: C++17, for nvcc as well. After NCCL's transfers they add the parts of several ranks; on one
// rank they add a gradient to the accumulator.
//
// sum_kernels.cu fills the table if CUDA is found; tests fill it with functions for the CPU.
// Thread rule: any thread; launches go to `stream`, a cudaStream_t of the device in use on that
// thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem {

/// accumulator = or += ((rank 0's + rank 1's) + ...), with each addition rounded to fp32. The bits
/// are those of the CPU's accumulate(). (A NaN stays a NaN, but its payload depends on the device.)
struct RankOrderSum {
  const void* own = nullptr;  // this rank's part: `elements`
  // Rank r's part is at r * stride_bytes; the part of `rank` itself is not read there.
  const void* others = nullptr;
  std::size_t stride_bytes = 0;
  std::uint32_t world = 1;
  std::uint32_t rank = 0;
  int block_type = 0;  // a DType
  bool add = false;    // true: +=
  float* accumulator = nullptr;
  // Used if `accumulator` is null, at world 1: gets the values unchanged, in their own type.
  void* copy = nullptr;
  std::size_t elements = 0;
  // Not null: norm::kLimbs limbs to which the norm of the result is added (norm_limbs.hpp). Element
  // 0 is then the first of a norm tile, and element i counts as `first_element` + i.
  std::uint64_t* norm = nullptr;
  std::int64_t first_element = 0;
};

struct SumKernels {
  /// Returns a CudaApi::Status of the launch.
  int (*add_in_rank_order)(const RankOrderSum& sum, void* stream);
  /// Sets the limbs to the norm of no elements.
  int (*clear_norm)(std::uint64_t* norm, void* stream);

  /// Returns the GPU's kernels. Throws Error(kRefused) if the build has none.
  [[nodiscard]] static const SumKernels& load();
};

}  // namespace tandem
