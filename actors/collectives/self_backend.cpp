#include <algorithm>
#include <cstring>

#include "actors/collectives/collective_backend.hpp"
#include "runtime/io/net.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace {
// Large enough that handing a chunk out costs nothing, small enough that two threads end at about
// the same time.
constexpr std::size_t kCopyChunkBytes = std::size_t{512} << 10;
constexpr std::size_t kReduceChunk = std::size_t{64} << 10;  // elements
static_assert(kReduceChunk % kNormTile == 0);

constexpr std::size_t chunks_of(std::size_t total, std::size_t chunk) {
  return (total + chunk - 1) / chunk;
}

}  // namespace

void CollectiveBackend::give_up(const std::exception& cause) noexcept {
  if (const auto* lost = dynamic_cast<const PeerLost*>(&cause); lost != nullptr) {
    fail(lost->rank(), cause.what());
  } else {
    abort(cause.what());
  }
}

void reduce_alone(const ReduceArguments& a, std::size_t begin, std::size_t end,
                  GradientNorm& norm) {
  const std::byte* const block = a.block.memory();
  void* const accumulator = a.accumulator.memory();
  if (block == accumulator) {
    if (a.want_norm) {
      add_norm(accumulator, a.accumulator_type, begin, end, norm);
    }
  } else if (a.accumulator_type != DType::kF32) {
    cast(block, a.block_type, accumulator, a.accumulator_type, begin, end);
    if (a.want_norm) {
      add_norm(accumulator, a.accumulator_type, begin, end, norm);
    }
  } else if (a.want_norm) {
    accumulate_with_norm(static_cast<float*>(accumulator), block, a.block_type, begin, end, a.mode,
                         norm);
  } else {
    accumulate(static_cast<float*>(accumulator), block, a.block_type, begin, end, a.mode);
  }
}

std::byte* SelfBackend::allocate(std::size_t bytes) {
  return allocated_.emplace_back(bytes).data();
}

Task<> SelfBackend::copy(const std::byte* from, std::byte* into, std::size_t bytes, Name name) {
  if (from == into) {
    co_return;
  }
  co_await pool_->for_chunks(chunks_of(bytes, kCopyChunkBytes),
                             [from, into, bytes](std::size_t chunk) {
                               const std::size_t begin = chunk * kCopyChunkBytes;
                               std::memcpy(into + begin, from + begin,
                                           std::min(kCopyChunkBytes, bytes - begin));
                             },
                             {.name = name});
}

Task<> SelfBackend::all_gather(GatherArguments arguments) {
  return copy(arguments.shard.host(), arguments.block.host(), arguments.shard_bytes,
              arguments.name);
}

Task<GradientNorm> SelfBackend::reduce_scatter_add(ReduceArguments arguments) {
  const ReduceArguments* a = &arguments;
  TANDEM_CHECK(a->accumulator_type == DType::kF32 ||
                   (a->block_type == a->accumulator_type && a->mode == AccumulateMode::kOverwrite),
               "nothing is added in 16 bits");
  TANDEM_CHECK(a->block.place() == Place::kHost && a->accumulator.place() == Place::kHost,
               "a back end for host memory adds there");
  const std::size_t chunks = chunks_of(a->shard_elements, kReduceChunk);
  parts_.assign(chunks, GradientNorm());
  GradientNorm* parts = parts_.data();
  const auto reduce_chunk = [a, parts](std::size_t chunk) {
    const std::size_t begin = chunk * kReduceChunk;
    reduce_alone(*a, begin, std::min(a->shard_elements, begin + kReduceChunk), parts[chunk]);
  };
  co_await pool_->for_chunks(chunks, reduce_chunk, {.name = a->name});
  GradientNorm norm;
  if (a->want_norm) {
    for (const GradientNorm& part : parts_) {
      norm.merge(part);
    }
  }
  co_return norm;
}

// The slice of the only rank is the whole block.
Task<GradientNorm> SelfBackend::all_reduce_add(ReduceArguments arguments) {
  return reduce_scatter_add(arguments);
}

Task<> SelfBackend::exchange(ExchangeArguments arguments) {
  TANDEM_CHECK_LE(arguments.bytes, kExchangeBytes, "an exchange is of a few bytes");
  if (arguments.bytes > 0) {
    std::memcpy(arguments.all.host(), arguments.mine.host(), arguments.bytes);
  }
  co_return;
}

Task<> SelfBackend::all_to_all(AllToAllArguments arguments) {
  return copy(arguments.from.host(), arguments.into.host(), arguments.bytes, "all-to-all");
}

}  // namespace tandem
