#include "engine/tensors/batch_check.hpp"

#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

std::string text_of(const at::Tensor& tensor) {
  return tensor.defined() ? fmt::format("{} [{}]", c10::toString(tensor.scalar_type()),
                                        fmt::join(tensor.sizes(), ", "))
                          : "missing";
}

Error refused(std::string_view what, const at::Tensor& tensor, std::string_view needed) {
  return user_error("engine",
                    "{} of a batch are {}, and the engine takes {}; correct what makes the batch",
                    what, text_of(tensor), needed);
}

}  // namespace

void check_batch(const Batch& batch, BatchUse use) {
  const at::Tensor& inputs = batch.inputs;
  const bool is_tokens = inputs.defined() && inputs.scalar_type() == at::kLong;
  if (!inputs.defined() || inputs.numel() == 0 || inputs.dim() == 0 ||
      (is_tokens ? inputs.dim() != 2 : !inputs.is_floating_point())) {
    throw refused("inputs", inputs,
                  "Long [rows, tokens] or Float [rows, ...] with at least one element");
  }
  const at::Tensor& positions = batch.positions;
  if (positions.defined() &&
      !(is_tokens && positions.scalar_type() == at::kLong && positions.sizes() == inputs.sizes())) {
    throw refused("positions", positions,
                  fmt::format("Long [{}]", fmt::join(inputs.sizes(), ", ")));
  }
  const at::Tensor& lengths = batch.lengths;
  if (lengths.defined() && !(is_tokens && lengths.scalar_type() == at::kLong &&
                             lengths.dim() == 1 && lengths.size(0) == inputs.size(0))) {
    throw refused("lengths", lengths, fmt::format("Long [{}]", inputs.size(0)));
  }
  if (positions.defined() && batch.memory != nullptr) {
    throw user_error("engine",
                     "a batch has positions and a memory: rows of several documents cannot be "
                     "continued; leave out one of them");
  }
  if (use == BatchUse::kLogits) {
    return;
  }
  const at::Tensor& labels = batch.labels;
  if (is_tokens && !(labels.defined() && labels.scalar_type() == at::kLong &&
                     labels.sizes() == inputs.sizes())) {
    throw refused("labels", labels, fmt::format("Long [{}]", fmt::join(inputs.sizes(), ", ")));
  }
  if (!labels.defined() || labels.dim() == 0 || labels.size(0) != inputs.size(0) ||
      !(labels.scalar_type() == at::kLong || labels.is_floating_point())) {
    throw refused("labels", labels,
                  fmt::format("{} rows of Long (classes) or Float (numbers)", inputs.size(0)));
  }
}

}  // namespace tandem
