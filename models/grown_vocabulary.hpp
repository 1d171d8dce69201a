// models/grown_vocabulary.hpp — adds tokens to a published model.
//
// The tokenizer's files with the new tokens are kept in the user's cache, under a name that follows
// from them; so every rank and host has the same without asking the others. Rows of new tokens
// begin as the mean of the rows of those that were there, in the embedding and in a head of its
// own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/types/model.hpp"
#include "models/io/hf_config.hpp"

namespace tandem {

/// One token in each line of a file. Throws user_error for a file without tokens, for one that is
/// there twice or is no UTF-8.
std::vector<std::string> read_new_tokens(const std::filesystem::path& file);

/// A folder with the tokenizer's files of `folder` and these tokens behind the others. Throws
/// user_error where it has no tokenizer.json or has one of the tokens already, and Error where the
/// cache cannot be written.
std::filesystem::path tokenizer_with(const std::filesystem::path& folder,
                                     const std::vector<std::string>& tokens);

/// Rows of a vocabulary before and after.
struct GrownVocabulary {
  std::int64_t tokens = 0;      // that were there
  std::int64_t new_tokens = 0;  // behind them
  std::int64_t rows = 0;        // of the published matrices; more than tokens where some are spare

  /// A multiple of 64 where the published rows do not suffice.
  [[nodiscard]] std::int64_t grown_rows() const;
};

/// The config of the model that is saved.
void grow(HfConfig& config, const GrownVocabulary& vocabulary);

/// `base` serves the published model; this one the model of the grown config.
ParameterSource with_new_rows(ParameterSource base, const HfConfig& published,
                              const GrownVocabulary& vocabulary);

}  // namespace tandem
