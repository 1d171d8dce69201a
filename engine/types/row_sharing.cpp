#include "engine/types/row_sharing.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

void require_blocks(const Model& model, std::int64_t ranks, std::int64_t blocks) {
  if (blocks == 0) {
    return;
  }
  if (blocks < 0 || !std::has_single_bit(static_cast<std::uint64_t>(blocks)) ||
      blocks % ranks != 0) {
    throw user_error("model",
                     "sequence_blocks is {}, and sequence_parallel_size {}; use a power of two "
                     "that is a multiple of it, or 0",
                     blocks, ranks);
  }
  if (!model.heads ||
      std::ranges::any_of(model.units, [](const UnitSpec& unit) { return unit.ep_size > 1; })) {
    throw user_error(
        "model", "sequence_blocks is {}, and {}; set it to 0", blocks,
        model.heads ? "experts are spread over ranks" : "this model's segments compute whole rows");
  }
}

}  // namespace

void require_row_sharing(const Model& model, std::int64_t ranks, std::int64_t blocks) {
  require_blocks(model, ranks, blocks);
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

}  // namespace tandem
