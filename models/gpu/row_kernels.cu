// models/gpu/row_kernels.cu — see row_kernels.hpp. C++17; no header of the runtime.
#include <initializer_list>
#include <type_traits>

#include <cuda_runtime_api.h>

#include "models/gpu/row_kernels-inl.hpp"

namespace tandem {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kWarp = 32;
constexpr unsigned kWarps = kThreads / kWarp;
constexpr unsigned kMostBlocks = 1U << 16;
constexpr unsigned kEveryone = 0xffffffffU;

__device__ float sum_of_warp(float own) {
  for (unsigned half = kWarp / 2; half > 0; half /= 2) {
    own += __shfl_xor_sync(kEveryone, own, half);
  }
  return own;
}
__device__ float greatest_of_warp(float own) {
  for (unsigned half = kWarp / 2; half > 0; half /= 2) {
    own = fmaxf(own, __shfl_xor_sync(kEveryone, own, half));
  }
  return own;
}

struct Warp {
  __device__ std::int64_t first() const { return threadIdx.x % kWarp; }
  __device__ std::int64_t size() const { return kWarp; }
  __device__ float sum(float own) const { return sum_of_warp(own); }
};

/// `shared`: [kWarps], of one reduction after the other.
struct Block {
  float* shared;

  __device__ std::int64_t first() const { return threadIdx.x; }
  __device__ std::int64_t size() const { return kThreads; }
  __device__ float sum(float own) const {
    share(sum_of_warp(own));
    float all = 0;
    for (unsigned warp = 0; warp < kWarps; ++warp) {
      all += shared[warp];
    }
    return all;
  }
  __device__ float greatest(float own) const {
    share(greatest_of_warp(own));
    float all = shared[0];
    for (unsigned warp = 1; warp < kWarps; ++warp) {
      all = fmaxf(all, shared[warp]);
    }
    return all;
  }

 private:
  __device__ void share(float of_warp) const {
    __syncthreads();  // the one before was read
    if (threadIdx.x % kWarp == 0) {
      shared[threadIdx.x / kWarp] = of_warp;
    }
    __syncthreads();
  }
};

template <class Type>
__global__ void __launch_bounds__(kThreads)
    turn_heads(rows::Heads<Type> heads, typename Type::Stored* q, typename Type::Stored* k,
               typename Type::Stored* v) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
       item < heads.items(); item += step) {
    heads.forward(item, q, k, v, Warp());
  }
}

/// `partials`: [gridDim.x, 2 head_dim], null without norms. Shared: a row of it for each warp.
template <class Type>
__global__ void __launch_bounds__(kThreads)
    turn_heads_back(rows::Heads<Type> heads, HeadGradients of, typename Type::Stored* dqkv,
                    float* partials) {
  extern __shared__ float sums[];
  const std::int64_t width = 2 * heads.s.head_dim;
  const unsigned warp = threadIdx.x / kWarp;
  float* const own = partials == nullptr ? nullptr : sums + warp * width;
  if (own != nullptr) {
    for (std::int64_t i = threadIdx.x % kWarp; i < width; i += kWarp) {
      own[i] = 0;
    }
    __syncwarp();
  }
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
       item < heads.items(); item += step) {
    heads.backward(item, of, dqkv, own, own == nullptr ? nullptr : own + heads.s.head_dim, Warp());
  }
  if (partials == nullptr) {
    return;
  }
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
    float sum = 0;
    for (unsigned from = 0; from < kWarps; ++from) {
      sum += sums[from * width + i];
    }
    partials[blockIdx.x * width + i] = sum;
  }
}

constexpr unsigned kColumns = 32;  // that a block of add_partials has
constexpr unsigned kParts = kThreads / kColumns;

/// [0, split) of the columns are the first weight's, the others the second's. Each thread adds a
/// part of a column from its first row to its last, then one of them the parts.
__global__ void __launch_bounds__(kThreads)
    add_partials(const float* partials, unsigned count, std::int64_t width, std::int64_t split,
                 WeightGradient first, WeightGradient second) {
  __shared__ float parts[kParts][kColumns];
  const unsigned lane = threadIdx.x % kColumns;
  const unsigned part = threadIdx.x / kColumns;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + lane;
  float own = 0;
  if (column < width) {
    const unsigned each = (count + kParts - 1) / kParts;
    const unsigned end = (part + 1) * each < count ? (part + 1) * each : count;
    for (unsigned row = part * each; row < end; ++row) {
      own += partials[row * width + column];
    }
  }
  parts[part][lane] = own;
  __syncthreads();
  if (part != 0 || column >= width) {
    return;
  }
  for (unsigned other = 1; other < kParts; ++other) {
    own += parts[other][lane];
  }
  const WeightGradient& gradient = column < split ? first : second;
  if (gradient.to != nullptr) {
    rows::give(gradient, column < split ? column : column - split, own);
  }
}

template <class Type, int kCount>
__global__ void __launch_bounds__(kThreads)
    norm_rows(rows::Rms<Type, kCount> norm, const typename Type::Stored* x,
              typename Type::Stored* y) {
  __shared__ float shared[kWarps];
  for (std::int64_t row = blockIdx.x; row < norm.s.rows; row += gridDim.x) {
    norm.forward(x + row * norm.s.width, y + row * norm.s.width, Block{shared});
  }
}

/// `partials`: [gridDim.x, width]. Shared: one row of it.
template <class Type, int kCount>
__global__ void __launch_bounds__(kThreads)
    norm_rows_back(rows::Rms<Type, kCount> norm, const typename Type::Stored* x,
                   const typename Type::Stored* dy, const typename Type::Stored* residual,
                   typename Type::Stored* dx, float* partials) {
  extern __shared__ float sums[];
  __shared__ float shared[kWarps];
  const Block block{shared};
  const std::int64_t width = norm.s.width;
  // A thread's elements of a row are the same in all of them.
  for (std::int64_t i = threadIdx.x * kCount; i < width; i += kThreads * kCount) {
    for (int k = 0; k < kCount; ++k) {
      sums[i + k] = 0;
    }
  }
  for (std::int64_t row = blockIdx.x; row < norm.s.rows; row += gridDim.x) {
    norm.backward(x + row * width, dy + row * width,
                  residual == nullptr ? nullptr : residual + row * width, dx + row * width, sums,
                  block);
  }
  for (std::int64_t i = threadIdx.x * kCount; i < width; i += kThreads * kCount) {
    for (int k = 0; k < kCount; ++k) {
      partials[blockIdx.x * width + i + k] = sums[i + k];
    }
  }
}

template <class Type, int kCount>
__global__ void __launch_bounds__(kThreads)
    activate(rows::Gates<Type, kCount> gates, std::int64_t packs, const typename Type::Stored* x,
             typename Type::Stored* a) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t p = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; p < packs;
       p += step) {
    gates.forward(x, a, p * kCount);
  }
}

template <class Type, int kCount>
__global__ void __launch_bounds__(kThreads)
    activate_back(rows::Gates<Type, kCount> gates, std::int64_t packs,
                  const typename Type::Stored* x, const typename Type::Stored* da,
                  typename Type::Stored* dx) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t p = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; p < packs;
       p += step) {
    gates.backward(x, da, dx, p * kCount);
  }
}

template <class Type, int kCount>
__global__ void __launch_bounds__(kThreads) take_losses(LossRows rows) {
  __shared__ float shared[kWarps];
  for (std::int64_t row = blockIdx.x; row < rows.rows; row += gridDim.x) {
    rows::loss_of_row<Type, kCount>(rows, row, Block{shared});
  }
}

unsigned blocks_for(std::int64_t count, unsigned each) {
  const std::int64_t wanted = (count + each - 1) / each;
  return wanted < kMostBlocks ? static_cast<unsigned>(wanted) : kMostBlocks;
}

using rows::with_type;

/// 16 bytes at a time where rows of `width` and all of these begin at such.
template <class Type, class Call>
void with_packs(std::int64_t width, std::initializer_list<const void*> all, Call call) {
  constexpr int kBytes = 16;
  constexpr int kCount = kBytes / sizeof(typename Type::Stored);
  bool aligned = width % kCount == 0;
  for (const void* one : all) {
    aligned = aligned && reinterpret_cast<std::uintptr_t>(one) % kBytes == 0;
  }
  if (aligned) {
    call(std::integral_constant<int, kCount>());
  } else {
    call(std::integral_constant<int, 1>());
  }
}

/// The status of the launches before.
int status() { return static_cast<int>(cudaGetLastError()); }

int heads_forward(const HeadRows& shape, const void* qkv, void* q, void* k, void* v, void* stream) {
  with_type(shape.type, [&](auto type) {
    using Stored = typename decltype(type)::Stored;
    const rows::Heads<decltype(type)> heads{shape, static_cast<const Stored*>(qkv)};
    turn_heads<<<blocks_for(heads.items(), kWarps), kThreads, 0,
                 static_cast<cudaStream_t>(stream)>>>(
        heads, static_cast<Stored*>(q), static_cast<Stored*>(k), static_cast<Stored*>(v));
  });
  return status();
}

void add_all(const float* partials, unsigned count, std::int64_t width, std::int64_t split,
             WeightGradient first, WeightGradient second, cudaStream_t stream) {
  add_partials<<<blocks_for(width, kColumns), kThreads, 0, stream>>>(partials, count, width, split,
                                                                     first, second);
}

unsigned partial_rows(std::int64_t count, unsigned each) {
  const unsigned blocks = blocks_for(count, each);
  return blocks < RowKernels::kPartials ? blocks : static_cast<unsigned>(RowKernels::kPartials);
}

int heads_backward(const HeadRows& shape, const void* qkv, const HeadGradients& of, void* dqkv,
                   float* partials, WeightGradient q_norm, WeightGradient k_norm, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const std::int64_t width = 2 * shape.head_dim;
  with_type(shape.type, [&](auto type) {
    using Stored = typename decltype(type)::Stored;
    const rows::Heads<decltype(type)> heads{shape, static_cast<const Stored*>(qkv)};
    if (shape.q_norm == nullptr) {
      turn_heads_back<<<blocks_for(heads.items(), kWarps), kThreads, 0, on>>>(
          heads, of, static_cast<Stored*>(dqkv), nullptr);
      return;
    }
    const unsigned blocks = partial_rows(heads.items(), kWarps);
    turn_heads_back<<<blocks, kThreads, kWarps * width * sizeof(float), on>>>(
        heads, of, static_cast<Stored*>(dqkv), partials);
    add_all(partials, blocks, width, shape.head_dim, q_norm, k_norm, on);
  });
  return status();
}

int rms_forward(const RmsRows& rows, const void* x, void* y, void* stream) {
  with_type(rows.type, [&](auto type) {
    using Stored = typename decltype(type)::Stored;
    with_packs<decltype(type)>(rows.width, {x, y}, [&](auto count) {
      norm_rows<decltype(type), count>
          <<<blocks_for(rows.rows, 1), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
              {rows}, static_cast<const Stored*>(x), static_cast<Stored*>(y));
    });
  });
  return status();
}

int rms_backward(const RmsRows& rows, const void* x, const void* dy, const void* residual, void* dx,
                 float* partials, WeightGradient weight, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const unsigned blocks = partial_rows(rows.rows, 1);
  with_type(rows.type, [&](auto type) {
    using Stored = typename decltype(type)::Stored;
    with_packs<decltype(type)>(rows.width, {x, dy, residual, dx}, [&](auto count) {
      norm_rows_back<decltype(type), count><<<blocks, kThreads, rows.width * sizeof(float), on>>>(
          {rows}, static_cast<const Stored*>(x), static_cast<const Stored*>(dy),
          static_cast<const Stored*>(residual), static_cast<Stored*>(dx), partials);
    });
  });
  add_all(partials, blocks, rows.width, rows.width, weight, {}, on);
  return status();
}

int activate_rows(Activation kind, DType type, std::int64_t rows, std::int64_t width, const void* x,
                  void* a, void* stream) {
  with_type(type, [&](auto of) {
    using Type = decltype(of);
    using Stored = typename Type::Stored;
    with_packs<Type>(width, {x, a}, [&](auto count) {
      const std::int64_t packs = rows * width / count;
      activate<Type, count>
          <<<blocks_for(packs, kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
              {kind, width}, packs, static_cast<const Stored*>(x), static_cast<Stored*>(a));
    });
  });
  return status();
}

int activate_rows_back(Activation kind, DType type, std::int64_t rows, std::int64_t width,
                       const void* x, const void* da, void* dx, void* stream) {
  with_type(type, [&](auto of) {
    using Type = decltype(of);
    using Stored = typename Type::Stored;
    with_packs<Type>(width, {x, da, dx}, [&](auto count) {
      const std::int64_t packs = rows * width / count;
      activate_back<Type, count>
          <<<blocks_for(packs, kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
              {kind, width}, packs, static_cast<const Stored*>(x), static_cast<const Stored*>(da),
              static_cast<Stored*>(dx));
    });
  });
  return status();
}

int loss(const LossRows& rows, void* stream) {
  with_type(rows.type, [&](auto type) {
    with_packs<decltype(type)>(rows.width, {rows.logits}, [&](auto count) {
      take_losses<decltype(type), count>
          <<<blocks_for(rows.rows, 1), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(rows);
    });
  });
  return status();
}

}  // namespace

const RowKernels& RowKernels::of_gpu() {
  static const RowKernels kGpu{
      &tandem::heads_forward, &tandem::heads_backward, &tandem::rms_forward, &tandem::rms_backward,
      &activate_rows,         &activate_rows_back,     &tandem::loss};
  return kGpu;
}

}  // namespace tandem
