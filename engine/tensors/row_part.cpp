#include "engine/tensors/row_part.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include "actors/storage/content_hash.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kNoLabel = -100;

/// [B, T] with `more` columns behind it.
at::Tensor with_columns(const at::Tensor& rows, std::int64_t more, std::int64_t value) {
  return at::cat({rows, at::full({rows.size(0), more}, value, rows.options())}, 1);
}

/// The values that are compared: two halves of a hash, rows, and tokens of a row.
struct Rows {
  std::uint64_t high, low;
  std::int64_t count, length;
  bool operator==(const Rows&) const = default;
};

Rows rows_of(const Batch& batch) {
  ContentHasher hasher;
  for (const at::Tensor& tensor : {batch.inputs, batch.labels, batch.positions, batch.lengths}) {
    if (!tensor.defined()) {
      continue;
    }
    const at::Tensor host = tensor.to(at::kCPU).contiguous();
    hasher.add(std::as_bytes(std::span(host.sizes().data(), host.sizes().size())));
    hasher.add({static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
  }
  const ContentHash hash = hasher.result();
  return {hash.high, hash.low, batch.inputs.size(0),
          batch.inputs.dim() > 1 ? batch.inputs.size(1) : 1};
}

}  // namespace

Batch with_part(Batch batch, const RowSharing& sharing) {
  if (!sharing.cuts()) {
    return batch;
  }
  if (batch.inputs.is_floating_point()) {
    throw user_error("engine",
                     "a batch of features cannot be cut into tokens; set sequence_parallel_size, "
                     "which is {}, to 1, and sequence_blocks, which is {}, to 0",
                     sharing.ranks, sharing.blocks);
  }
  const std::int64_t length = batch.inputs.size(1);
  const std::int64_t pieces = std::max(sharing.ranks, sharing.blocks);
  const std::int64_t count = (length + pieces - 1) / pieces * (pieces / sharing.ranks);
  const std::int64_t more = count * sharing.ranks - length;
  batch.tokens = batch.tokens >= 0 ? batch.tokens : batch.inputs.numel();
  if (more > 0) {
    if (batch.positions.defined()) {  // each a document: the longest one stays what it is
      batch.positions = with_columns(batch.positions, more, 0);
    }
    batch.inputs = with_columns(batch.inputs, more, 0);
    batch.labels = with_columns(batch.labels, more, kNoLabel);
  }
  batch.part = {.begin = sharing.place * count, .count = count, .length = length};
  return batch;
}

void require_same_rows(const Batch& batch, RankExchange& group) {
  const std::vector<Rows> mine(static_cast<std::size_t>(group.ranks()), rows_of(batch));
  std::vector<Rows> all(mine.size());
  group.all_to_all(std::as_bytes(std::span(mine)).data(),
                   std::as_writable_bytes(std::span(all)).data(), sizeof(Rows));
  const auto other = std::ranges::find_if(all, [&](const Rows& rows) { return rows != all[0]; });
  if (other != all.end()) {
    throw user_error("engine",
                     "the ranks of a sequence group hold different batches: the first {} rows of "
                     "{} tokens, number {} of them {} of {}, or other tokens; give all ranks that "
                     "share rows the same batch (sequence_parallel_size is {})",
                     all[0].count, all[0].length, other - all.begin(), other->count, other->length,
                     group.ranks());
  }
}

}  // namespace tandem
