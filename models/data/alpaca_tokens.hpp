// models/data/alpaca_tokens.hpp — converts instruction records into token ids, with a mask of those
// that are learnt.
//
// Ids are those of the whole text, question and answer together. The part that kCompletion learns
// begins where the ids of the question alone, with the special tokens before it, and those of the
// whole first differ: at the answer's first token, or at a token that reaches from the question
// into the answer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "models/data/alpaca.hpp"
#include "models/data/memory_records.hpp"
#include "models/io/tokenizer/tokenizer.hpp"

namespace tandem {

struct AlpacaTokenOptions {
  std::int64_t max_length = 2048;
  LossOn loss_on = LossOn::kCompletion;  // the assistant's words are the answer, too
  /// Stands behind each answer that is whole, once, whatever the tokenizer adds; nothing: texts end
  /// as the tokenizer ends them, and keep its special tokens where they are cut.
  std::optional<std::int32_t> end_token;
};

/// Throws user_error where the tokenizer's special tokens alone are longer than max_length.
std::shared_ptr<MemoryRecords> tokenise_alpaca(std::span<const AlpacaRecord> records,
                                               const Tokenizer& tokenizer,
                                               const AlpacaTokenOptions& options);

}  // namespace tandem
