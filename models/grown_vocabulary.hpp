// models/grown_vocabulary.hpp — adds tokens to a published model.
//
// The tokenizer's files with the new tokens are kept in the user's cache, in a folder whose name is
// a hash of them; so every rank and host has the same files without communication. In the
// embedding, and in the head if it is a matrix of its own, the rows of new tokens begin as the mean
// of the old tokens' rows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/types/model.hpp"
#include "models/io/hf_config.hpp"

namespace tandem {

/// Reads one token from each line of a file that is not empty. Throws user_error if there is no
/// token, or if one occurs twice or is no UTF-8.
std::vector<std::string> read_new_tokens(const std::filesystem::path& file);

/// Returns a folder with the tokenizer's files of `folder`, to which these tokens are added behind
/// the others. Throws user_error if `folder` has no tokenizer.json or its tokenizer has one of the
/// tokens already, and Error if the cache cannot be written.
std::filesystem::path tokenizer_with(const std::filesystem::path& folder,
                                     const std::vector<std::string>& tokens);

/// Rows of a vocabulary before and after.
struct GrownVocabulary {
  std::int64_t tokens = 0;      // before
  std::int64_t new_tokens = 0;  // added behind them
  std::int64_t rows = 0;        // of the published matrices; more than `tokens` if some are spare

  /// Returns the published rows if they suffice, else a multiple of 64.
  [[nodiscard]] std::int64_t grown_rows() const;
};

/// Changes the config to the grown model's.
void grow(HfConfig& config, const GrownVocabulary& vocabulary);

/// Returns the source of the grown model; `base` is the published model's.
ParameterSource with_new_rows(ParameterSource base, const HfConfig& published,
                              const GrownVocabulary& vocabulary);

}  // namespace tandem
