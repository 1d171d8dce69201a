// actors/gpu/update_kernels.cu — see update_kernels.hpp. C++17; no header of the runtime.
#include <cuda_runtime_api.h>

#include "actors/gpu/update_kernels.hpp"
#include "actors/kernels/update/update_element-inl.hpp"

namespace tandem {
namespace {

using namespace N_ONE_LANE;  // NOLINT: the rules and layouts, for a thread

constexpr unsigned kThreads = 256;
constexpr unsigned kMostBlocks = 4096;

__device__ std::size_t thread_number() {
  return static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
}
__device__ std::size_t all_threads() { return static_cast<std::size_t>(gridDim.x) * kThreads; }

template <class Rule, class Moment, bool kSplit>
__global__ void __launch_bounds__(kThreads)
    update_elements(Rule rule, PassBuffers pass, RoundingBits rounding_bits, std::size_t first,
                    std::size_t count) {
  for (std::size_t i = thread_number(); i < count; i += all_threads()) {
    update_element<Rule, Moment, kSplit>(rule, pass, rounding_bits, first, first + i);
  }
}

/// A warp: neighbours have neighbouring elements.
struct Warp {
  static constexpr unsigned kMembers = 32;

  __device__ unsigned first() const { return threadIdx.x % kMembers; }
  __device__ std::uint32_t greatest(std::uint32_t own) const {
    for (unsigned half = kMembers / 2; half > 0; half /= 2) {
      const std::uint32_t other = __shfl_xor_sync(0xffffffffU, own, half);
      own = other > own ? other : own;
    }
    return own;
  }
};

template <class Rule, bool kSplit>
__global__ void __launch_bounds__(kThreads)
    update_blocks(Rule rule, PassBuffers pass, RoundingBits rounding_bits, std::size_t first,
                  std::size_t count) {
  const std::size_t warps = all_threads() / Warp::kMembers;
  for (std::size_t at = thread_number() / Warp::kMembers * kScaleGroup; at < count;
       at += warps * kScaleGroup) {
    update_block<Rule, kSplit>(rule, pass, rounding_bits.from(at), first + at, count - at, Warp());
  }
}

__global__ void __launch_bounds__(kThreads)
    restore_elements(Restored restored, std::size_t first, std::size_t count) {
  for (std::size_t i = thread_number(); i < count; i += all_threads()) {
    restore_element(restored, first + i);
  }
}

struct Launch {
  cudaStream_t stream;

  /// Blocks for this many threads; beyond that each has several elements.
  static unsigned blocks_for(std::size_t threads) {
    const std::size_t wanted = (threads + kThreads - 1) / kThreads;
    return wanted < kMostBlocks ? static_cast<unsigned>(wanted) : kMostBlocks;
  }
  template <class Rule, class Moment, bool kSplit>
  void elements(const Rule& rule, const PassBuffers& pass, RoundingBits rounding_bits,
                std::size_t first, std::size_t count) {
    update_elements<Rule, Moment, kSplit>
        <<<blocks_for(count), kThreads, 0, stream>>>(rule, pass, rounding_bits, first, count);
  }
  template <class Rule, bool kSplit>
  void blocks(const Rule& rule, const PassBuffers& pass, RoundingBits rounding_bits,
              std::size_t first, std::size_t count) {
    const std::size_t warps = (count + kScaleGroup - 1) / kScaleGroup;
    update_blocks<Rule, kSplit><<<blocks_for(warps * Warp::kMembers), kThreads, 0, stream>>>(
        rule, pass, rounding_bits, first, count);
  }
  void restore(const Restored& restored, std::size_t first, std::size_t count) {
    restore_elements<<<blocks_for(count), kThreads, 0, stream>>>(restored, first, count);
  }
};

void launch_pass(UpdatePass pass, const UpdatedUnit& unit, const UpdateStep* steps,
                 std::size_t begin, std::size_t end, void* stream) {
  Launch launch{static_cast<cudaStream_t>(stream)};
  carry_out_pass(pass, unit, steps, begin, end, launch);
}

}  // namespace

const UpdateKernels& UpdateKernels::load() {
  static const UpdateKernels kReal{&launch_pass};
  return kReal;
}

}  // namespace tandem
