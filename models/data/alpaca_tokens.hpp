// models/data/alpaca_tokens.hpp — converts instruction records into token ids, with a mask of those
// that are learnt.
//
// A record's ids are the ids of its whole text, question and answer together. kCompletion learns
// from the first position on at which they differ from the ids of the question alone (with the
// special tokens before it): the answer's first token, or a token that reaches from the question
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
  LossOn loss_on = LossOn::kCompletion;  // kAssistant has the same meaning here
  /// This token ends each complete answer, once, even if the tokenizer adds it, too. Without it
  /// texts end as the tokenizer ends them, even if they are cut.
  std::optional<std::int32_t> end_token;
};

/// Tokenises the records on all CPUs of the process. Throws user_error if the tokenizer's special
/// tokens alone are longer than max_length.
std::shared_ptr<MemoryRecords> tokenise_alpaca(std::span<const AlpacaRecord> records,
                                               const Tokenizer& tokenizer,
                                               const AlpacaTokenOptions& options);

}  // namespace tandem
