// models/data/alpaca.hpp — instruction records, and the text that is made of one: the DeepSpeed
// example's.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tandem {

struct AlpacaRecord {
  std::string instruction;
  std::string input;  // often empty; so is one that the file leaves out or calls null
  std::string output;
};

/// Reads a .json file (an array of records) or a .jsonl file (one record per line, blank lines are
/// skipped). Keeps the first `percentage` percent, rounded down. Error: not readable, not JSON, a
/// member missing or no string, or one that would change what is learnt (record_members.hpp; names
/// file, record and line), or nothing left. `unused` gets the members that are in no list.
std::vector<AlpacaRecord> read_alpaca(const std::filesystem::path& path, double percentage = 100.0,
                                      std::vector<std::string>* unused = nullptr);

/// The text that is trained on; up to "### Response:\n" is what generation starts from.
std::string alpaca_question(const AlpacaRecord& record);
std::string alpaca_text(const AlpacaRecord& record);  // question and output

}  // namespace tandem
