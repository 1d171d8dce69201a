// trainer/finetune/data.hpp — opens the data of --dataset_name and related flags as records of
// tokens, and checks their masks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/data/alpaca.hpp"
#include "models/data/token_dataset.hpp"
#include "models/data/token_records.hpp"
#include "trainer/finetune/flags.hpp"

namespace tandem {

struct FinetuneData {
  std::vector<AlpacaRecord> records;  // the tokens' source
  std::shared_ptr<const TokenRecords> tokens;
  std::shared_ptr<const TokenDataset> dataset;
  std::shared_ptr<const TokenDataset> evaluated;  // held out; null: none
  std::optional<std::int32_t> end_token;          // the token that --append_eos puts behind answers
  /// Lines printed before the first step: counts, the tokens that are trained, a record, and the
  /// packing.
  std::vector<std::string> lines;

  /// Returns the tokens of the longest row, learnt or held out.
  [[nodiscard]] std::int64_t longest() const {
    return std::max(dataset->longest(), evaluated != nullptr ? evaluated->longest() : 0);
  }
};

/// `folder` holds the tokenizer. Throws user_error if the data or its masks are refused
/// (models/data/mask_check.hpp).
FinetuneData open_data(const FinetuneFlags& flags, const std::filesystem::path& folder,
                       const Tokenizer& tokenizer);

}  // namespace tandem
