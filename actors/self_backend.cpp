// actors/self_backend.cpp — see SelfBackend in collective_backend.hpp.
#include <algorithm>
#include <cstring>

#include "actors/collective_backend.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace {
// Large enough that handing a chunk out costs nothing, small enough that two threads end at about the same time.
constexpr std::size_t kCopyChunkBytes = std::size_t{512} << 10;
constexpr std::size_t kReduceChunk = std::size_t{64} << 10;  // elements
static_assert(kReduceChunk % kNormBlock == 0);

constexpr std::size_t chunks_of(std::size_t total, std::size_t chunk) {
  return (total + chunk - 1) / chunk;
}

void reduce_chunk(const ReduceArguments& a, std::size_t chunk, GradientNorm& norm) {
  const std::size_t begin = chunk * kReduceChunk;
  const std::size_t end = std::min(a.shard_elements, begin + kReduceChunk);
  if (a.accumulator_type == DType::kBF16) {
    cast(a.block, a.block_type, a.accumulator, a.accumulator_type, begin, end);
    if (a.want_norm) {
      add_norm(a.accumulator, a.accumulator_type, begin, end, norm);
    }
  } else if (a.want_norm) {
    accumulate_with_norm(static_cast<float*>(a.accumulator), a.block, a.block_type, begin, end,
                         a.mode, norm);
  } else {
    accumulate(static_cast<float*>(a.accumulator), a.block, a.block_type, begin, end, a.mode);
  }
}
}  // namespace

Task<> SelfBackend::all_gather(GatherArguments arguments) {
  const GatherArguments* a = &arguments;
  co_await pool_->for_chunks(chunks_of(a->shard_bytes, kCopyChunkBytes), [a](std::size_t chunk) {
    const std::size_t begin = chunk * kCopyChunkBytes;
    std::memcpy(a->block + begin, a->shard + begin,
                std::min(kCopyChunkBytes, a->shard_bytes - begin));
  });
}

Task<GradientNorm> SelfBackend::reduce_scatter_add(ReduceArguments arguments) {
  const ReduceArguments* a = &arguments;
  TANDEM_CHECK(a->accumulator_type == DType::kF32 ||
                   (a->block_type == DType::kBF16 && a->mode == AccumulateMode::kOverwrite),
               "nothing is added in bf16");
  const std::size_t chunks = chunks_of(a->shard_elements, kReduceChunk);
  parts_.assign(chunks, GradientNorm());
  GradientNorm* parts = parts_.data();
  co_await pool_->for_chunks(
      chunks, [a, parts](std::size_t chunk) { reduce_chunk(*a, chunk, parts[chunk]); });
  GradientNorm norm;
  if (a->want_norm) {
    for (const GradientNorm& part : parts_) {
      norm.merge(part);
    }
  }
  co_return norm;
}

Task<GradientNorm> SelfBackend::all_reduce_norm(GradientNorm local) { co_return local; }

}  // namespace tandem
