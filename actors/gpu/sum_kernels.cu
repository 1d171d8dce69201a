// actors/gpu/sum_kernels.cu — see sum_kernels.hpp. C++17; no header of the runtime.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "actors/gpu/norm_limbs.hpp"
#include "actors/gpu/sum_kernels.hpp"

namespace tandem {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / norm::kLanes;
constexpr unsigned kMostBlocks = 1024;

__device__ float widened(float value) { return value; }
__device__ float widened(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ float widened(__half value) { return __half2float(value); }

template <class Value>
__device__ float sum_of(const RankOrderSum& s, std::size_t i) {
  float total = s.add ? s.accumulator[i] : 0.0F;
  for (std::uint32_t r = 0; r < s.world; ++r) {
    const void* part =
        r == s.rank ? s.own : static_cast<const char*>(s.others) + r * s.stride_bytes;
    const float value = widened(static_cast<const Value*>(part)[i]);
    total = r == 0 && !s.add ? value : __fadd_rn(total, value);
  }
  return total;
}

template <class Value>
__device__ void store(const RankOrderSum& s, std::size_t i, float value) {
  if (s.accumulator != nullptr) {
    s.accumulator[i] = value;
  } else {
    static_cast<Value*>(s.copy)[i] = static_cast<const Value*>(s.own)[i];
  }
}

__device__ void add_to_norm(std::uint64_t* limbs, double sum) {
  const norm::Addends addends = norm::addends_of(sum);
  for (unsigned k = 0; k < addends.count; ++k) {
    if (addends.limbs[k] != 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(limbs + addends.index + k),
                static_cast<unsigned long long>(addends.limbs[k]));
    }
  }
}

// A warp takes a norm block at a time: lane k the elements k, k + 32, ... The sums of a thread
// block come together in shared memory first, because neighbours' sums have about the same exponent
// and would all meet at the same three limbs.
template <class Value>
__global__ void add_with_norm(RankOrderSum s) {
  __shared__ std::uint64_t limbs[norm::kLimbs];
  for (unsigned k = threadIdx.x; k < norm::kLimbs; k += kThreads) {
    limbs[k] = k == norm::kFirstBad ? ~std::uint64_t{0} : 0;
  }
  __syncthreads();
  const unsigned lane = threadIdx.x % norm::kLanes;
  const std::size_t blocks = (s.elements + norm::kBlockElements - 1) / norm::kBlockElements;
  const std::size_t warps = static_cast<std::size_t>(gridDim.x) * kWarps;
  for (std::size_t b = static_cast<std::size_t>(blockIdx.x) * kWarps + threadIdx.x / norm::kLanes;
       b < blocks; b += warps) {
    double squares = 0;
    for (unsigned k = lane; k < norm::kBlockElements; k += norm::kLanes) {
      const std::size_t i = b * norm::kBlockElements + k;
      if (i >= s.elements) {
        break;
      }
      const float value = sum_of<Value>(s, i);
      store<Value>(s, i, value);
      squares = __fma_rn(static_cast<double>(value), static_cast<double>(value), squares);
      if (!norm::is_finite(value)) {
        atomicMin(reinterpret_cast<unsigned long long*>(limbs + norm::kFirstBad),
                  static_cast<unsigned long long>(s.first_element) + i);
      }
    }
    __syncwarp();
    for (unsigned half = norm::kLanes / 2; half > 0; half /= 2) {
      squares = __dadd_rn(squares, __shfl_down_sync(0xffffffffU, squares, half));
    }
    if (lane == 0) {
      add_to_norm(limbs, squares);
    }
  }
  __syncthreads();
  for (unsigned k = threadIdx.x; k < norm::kSumLimbs; k += kThreads) {
    if (limbs[k] != 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(s.norm + k),
                static_cast<unsigned long long>(limbs[k]));
    }
  }
  if (threadIdx.x == 0 && limbs[norm::kFirstBad] != ~std::uint64_t{0}) {
    atomicMin(reinterpret_cast<unsigned long long*>(s.norm + norm::kFirstBad),
              static_cast<unsigned long long>(limbs[norm::kFirstBad]));
  }
}

template <class Value>
__global__ void add_alone(RankOrderSum s) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * kThreads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < s.elements; i += step) {
    store<Value>(s, i, sum_of<Value>(s, i));
  }
}

__global__ void clear_limbs(std::uint64_t* limbs) {
  for (unsigned k = threadIdx.x; k < norm::kLimbs; k += kThreads) {
    limbs[k] = k == norm::kFirstBad ? ~std::uint64_t{0} : 0;
  }
}

template <class Value>
int launch(const RankOrderSum& s, cudaStream_t stream) {
  if (s.elements == 0) {
    return cudaSuccess;
  }
  const std::size_t per_block = s.norm != nullptr ? kWarps * norm::kBlockElements : kThreads * 4;
  const std::size_t wanted = (s.elements + per_block - 1) / per_block;
  const unsigned blocks = wanted < kMostBlocks ? static_cast<unsigned>(wanted) : kMostBlocks;
  if (s.norm != nullptr) {
    add_with_norm<Value><<<blocks, kThreads, 0, stream>>>(s);
  } else {
    add_alone<Value><<<blocks, kThreads, 0, stream>>>(s);
  }
  return cudaPeekAtLastError();  // left for the device to take
}

int add_in_rank_order(const RankOrderSum& sum, void* stream) {
  auto* const native = static_cast<cudaStream_t>(stream);
  switch (sum.block_type) {
    case 0:
      return launch<float>(sum, native);
    case 1:
      return launch<__nv_bfloat16>(sum, native);
    case 2:
      return launch<__half>(sum, native);
    default:
      return cudaErrorInvalidValue;
  }
}

int clear_norm(std::uint64_t* limbs, void* stream) {
  clear_limbs<<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(limbs);
  return cudaPeekAtLastError();  // left for the device to take
}

}  // namespace

const SumKernels& SumKernels::load() {
  static const SumKernels kReal{&tandem::add_in_rank_order, &tandem::clear_norm};
  return kReal;
}

}  // namespace tandem
