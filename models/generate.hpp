// models/generate.hpp — continues a prompt token by token with the most likely next token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tandem {

struct GenerateOptions {
  std::int64_t max_new_tokens = 64;
  std::int64_t end_token = -1;  // generation stops after it; -1: none
};

/// Logits fp32 [1, T, V] of token ids int64 [1, T].
using LogitsFunction = std::function<at::Tensor(const at::Tensor& ids)>;

/// The new tokens only, without the end token. The whole prefix is run again for each token, so this is for samples and
/// tests, not for serving.
std::vector<std::int64_t> generate_greedy(const LogitsFunction& logits,
                                          std::span<const std::int64_t> prompt,
                                          const GenerateOptions& options);

}  // namespace tandem
