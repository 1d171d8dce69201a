// models/generate.hpp — continues a text token by token: the most likely one each time, or drawn at
// random.
//
// The text so far is run once; after that each token alone, with the keys and values that the
// segments remember.
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
  /// A text that grows beyond this many positions is run anew once, because its rotary frequencies
  /// change there (LongRoPE). 0: never.
  std::int64_t short_text = 0;
  std::function<void(std::int64_t token)> on_token = {};  // called for each as it is made
};

/// Greedy, with the model's end tokens: those of generation_config.json, else of config.json, else
/// the tokenizer's.
GenerateOptions generate_options(const Pretrained& pretrained);

/// The new tokens only, without the end token. All ranks call it alike; each gets the same. Between
/// steps.
std::vector<std::int64_t> generate(Engine& engine, std::span<const std::int64_t> prompt,
                                   const GenerateOptions& options);

/// The next token out of its logits; `index`: how many were drawn before.
std::int64_t choose_token(std::span<const float> logits, const GenerateOptions& options,
                          std::uint64_t index);

}  // namespace tandem
