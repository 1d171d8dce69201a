// models/data/alpaca.hpp — reads instruction records, and makes the DeepSpeed example's text of a
// record.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tandem {

struct AlpacaRecord {
  std::string instruction;
  std::string input;  // often empty; absent or null counts as empty
  std::string output;
};

/// Reads a .json file (an array of records) or a .jsonl file (one record per line, blank lines are
/// skipped). Keeps the first `percentage` percent, rounded down. Throws an error if the file cannot
/// be read or is no JSON, if a member is missing, is no string or would change what is learnt
/// (record_members.hpp; the message names file, record and line), or if no record is left. `unused`
/// gets the names of members that are in no list.
std::vector<AlpacaRecord> read_alpaca(const std::filesystem::path& path, double percentage = 100.0,
                                      std::vector<std::string>* unused = nullptr);

/// Returns the prompt, which ends with "### Response:\n"; generation starts from it.
std::string alpaca_question(const AlpacaRecord& record);
std::string alpaca_text(const AlpacaRecord& record);  // question and output: the training text

}  // namespace tandem
