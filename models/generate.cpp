#include "models/generate.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include <ATen/ops/from_blob.h>

#include "models/io/generation_config.hpp"
#include "models/io/random_init.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

/// Uniform in [0, 1), a function of seed and index alone.
double uniform(std::uint64_t seed, std::uint64_t index) {
  const auto bits = philox4x32(
      {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0}, seed);
  const std::uint64_t word = static_cast<std::uint64_t>(bits[0]) << 32 | bits[1];
  return static_cast<double>(word >> 11) * 0x1p-53;
}

}  // namespace

GenerateOptions generate_options(const Pretrained& pretrained) {
  const HfConfig& config = pretrained.config();
  GenerateOptions options;
  options.end_tokens = generation_end_tokens(pretrained.folder());
  if (options.end_tokens.empty()) {
    options.end_tokens = config.eos_token_ids;
  }
  if (options.end_tokens.empty() && pretrained.tokenizer().eos_id()) {
    options.end_tokens.push_back(*pretrained.tokenizer().eos_id());
  }
  if (config.rope.kind == RotaryKind::kLongRope) {
    options.short_text = config.rope.original_positions;
  }
  return options;
}

std::int64_t choose_token(std::span<const float> logits, const GenerateOptions& options,
                          std::uint64_t index) {
  const auto largest = std::ranges::max_element(logits);
  if (options.temperature <= 0) {
    return largest - logits.begin();
  }
  std::vector<double> weight(logits.size());
  double all = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weight[i] = std::exp((static_cast<double>(logits[i]) - *largest) / options.temperature);
    all += weight[i];
  }
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater{},
                           [&](std::int64_t i) { return weight[static_cast<std::size_t>(i)]; });
  double kept = 0;
  std::size_t count = 0;
  while (count < order.size() && (count == 0 || kept < options.top_p * all)) {
    kept += weight[static_cast<std::size_t>(order[count++])];
  }
  double left = uniform(options.seed, index) * kept;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    left -= weight[static_cast<std::size_t>(order[i])];
    if (left < 0) {
      return order[i];
    }
  }
  return order[count - 1];
}

std::vector<std::int64_t> generate(Engine& engine, std::span<const std::int64_t> prompt,
                                   const GenerateOptions& options) {
  TANDEM_CHECK(!prompt.empty(), "there is nothing to continue");
  auto memory = std::make_shared<TextMemory>();
  std::vector<std::int64_t> input(prompt.begin(), prompt.end());
  std::vector<std::int64_t> made;
  while (std::ssize(made) < options.max_new_tokens) {
    const at::Tensor ids = at::from_blob(input.data(), {1, std::ssize(input)}, at::kLong);
    const at::Tensor logits = engine.logits({.inputs = ids, .memory = memory}).contiguous();
    const std::span<const float> last(logits.data_ptr<float>(),
                                      static_cast<std::size_t>(logits.numel()));
    const std::int64_t next = choose_token(last, options, made.size());
    if (std::ranges::find(options.end_tokens, next) != options.end_tokens.end()) {
      break;
    }
    made.push_back(next);
    if (options.on_token) {
      options.on_token(next);
    }
    input.assign(1, next);
    if (memory->position == options.short_text) {
      memory = std::make_shared<TextMemory>();
      input.assign(prompt.begin(), prompt.end());
      input.insert(input.end(), made.begin(), made.end());
    }
  }
  return made;
}

}  // namespace tandem
