// models/generate.hpp — continues a text token by token: the most likely one each time, or drawn at
// random.
//
// The prompt is computed once; after that each token is computed alone, with the keys and values
// that the segments keep.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/engine.hpp"
#include "models/pretrained.hpp"

namespace tandem {

struct GenerateOptions {
  std::int64_t max_new_tokens = 64;
  std::vector<std::int64_t> end_tokens;  // generation stops at each of them
  double temperature = 0;  // of the softmax that is drawn from; 0: the most likely token
  double top_p = 1;        // only the most likely tokens that have this probability together
  std::uint64_t seed = 0;  // the same seed draws the same text
  /// A text that grows beyond this number of positions is computed again once, because its rotary
  /// frequencies change there (LongRoPE). 0: never.
  std::int64_t short_text = 0;
  std::function<void(std::int64_t token)> on_token = {};  // called with each new token
};

/// Returns greedy options with the model's end tokens: generation_config.json's, else
/// config.json's, else the tokenizer's.
GenerateOptions generate_options(const Pretrained& pretrained);

/// Returns the new tokens only, without the end token. All ranks call it with the same arguments,
/// between steps, and get the same tokens.
std::vector<std::int64_t> generate(Engine& engine, std::span<const std::int64_t> prompt,
                                   const GenerateOptions& options);

/// Returns the next token by its logits; `index`: the number of tokens made before it.
std::int64_t choose_token(std::span<const float> logits, const GenerateOptions& options,
                          std::uint64_t index);

}  // namespace tandem
