#include "engine/types/row_sharing.hpp"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kNoLabel = -100;

/// [B, T] with `more` columns behind it.
at::Tensor with_columns(const at::Tensor& rows, std::int64_t more, std::int64_t value) {
  return at::cat({rows, at::full({rows.size(0), more}, value, rows.options())}, 1);
}

}  // namespace

void require_row_sharing(const Model& model, std::int64_t ranks) {
  if (ranks == 1) {
    return;
  }
  if (!model.heads) {
    throw user_error("model",
                     "sequence_parallel_size is {}, and this model's segments compute whole rows; "
                     "set it to 1",
                     ranks);
  }
  const auto [heads, kv_heads] = *model.heads;
  if (heads % ranks != 0) {
    throw user_error("model",
                     "sequence_parallel_size is {}, and {} attention heads cannot be dealt to "
                     "them alike; use a divisor of {}",
                     ranks, heads, heads);
  }
  if (kv_heads % ranks != 0 && ranks % kv_heads != 0) {
    throw user_error("model",
                     "sequence_parallel_size is {}, and {} key/value heads can neither be dealt to "
                     "them alike nor each be copied to as many; use a divisor or a multiple of {}",
                     ranks, kv_heads, kv_heads);
  }
  if (std::ranges::any_of(model.units, [](const UnitSpec& unit) { return unit.ep_size > 1; })) {
    throw user_error("model",
                     "sequence_parallel_size is {}, and experts are spread over ranks as well; "
                     "set one of the two to 1",
                     ranks);
  }
}

Batch with_part(Batch batch, const RowSharing& sharing) {
  if (sharing.ranks == 1) {
    return batch;
  }
  if (batch.inputs.is_floating_point()) {
    throw user_error("engine",
                     "a batch of features cannot be cut into tokens; set sequence_parallel_size, "
                     "which is {}, to 1",
                     sharing.ranks);
  }
  const std::int64_t length = batch.inputs.size(1);
  const std::int64_t count = (length + sharing.ranks - 1) / sharing.ranks;
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

}  // namespace tandem
