#include "models/generate.hpp"

#include <algorithm>

#include <ATen/ops/from_blob.h>

#include "runtime/util/check.hpp"

namespace tandem {

std::vector<std::int64_t> generate_greedy(const LogitsFunction& logits,
                                          std::span<const std::int64_t> prompt,
                                          const GenerateOptions& options) {
  TANDEM_CHECK(!prompt.empty(), "there is nothing to continue");
  std::vector<std::int64_t> ids(prompt.begin(), prompt.end());
  for (std::int64_t i = 0; i < options.max_new_tokens; ++i) {
    const auto length = static_cast<std::int64_t>(ids.size());
    const at::Tensor input = at::from_blob(ids.data(), {1, length}, at::kLong);
    const at::Tensor output = logits(input);  // [1, T, V]
    const std::int64_t vocabulary = output.size(2);
    const float* last = output.data_ptr<float>() + (length - 1) * vocabulary;
    const std::int64_t next = std::max_element(last, last + vocabulary) - last;
    if (next == options.end_token) {
      break;
    }
    ids.push_back(next);
  }
  return {ids.begin() + static_cast<std::ptrdiff_t>(prompt.size()), ids.end()};
}

}  // namespace tandem
