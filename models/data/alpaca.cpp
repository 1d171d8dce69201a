#include "models/data/alpaca.hpp"

#include <algorithm>
#include <utility>

#include "actors/storage/file.hpp"
#include "actors/storage/json.hpp"
#include "models/data/record_members.hpp"
#include "models/io/tokenizer/byte_level.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/utf8.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "dataset";
constexpr std::uint64_t kMostDatasetBytes = std::uint64_t{2} << 30;
constexpr std::string_view kAdvice =
    "every record needs the strings instruction and output, and may have input; of other formats "
    "./tandem train and ./tandem launch -n make a token file, and for other ranks ./tandem prepare "
    "--model_name D --dataset_name F --output X.tokens, which --dataset_name X.tokens reads";

JsonOrigin origin(const std::filesystem::path& path, std::size_t line) {
  return {.where = std::string(kWhere),
          .file = line > 0 ? fmt::format("{}:{}", path.string(), line) : path.string(),
          .advice = std::string(kAdvice)};
}

/// Collects the names of members that are in no list, each once.
void check_members(const JsonValue& record, std::vector<std::string>& unused) {
  for (const auto& [name, value] : record.members()) {
    switch (meaning_of(name, value)) {
      case RecordMember::kUsed:
      case RecordMember::kHarmless:
        break;
      case RecordMember::kRefused:
        throw record.error(fmt::format(
            "\"{}\" would change what is learnt, and instruction records are read without it; take "
            "it out, or give the record as messages (./tandem train --dataset_format alpaca_chat "
            "makes chats of instructions)",
            name));
      case RecordMember::kBadAnswer:
        throw record.error(fmt::format(
            "\"{}\" is {}: the record says that its answer is a bad one, and that would be "
            "learnt; leave such records out",
            name, value.text()));
      case RecordMember::kUnknown:
        if (std::ranges::find(unused, name) == unused.end()) {
          unused.emplace_back(name);
        }
        break;
    }
  }
}

AlpacaRecord read_record(const JsonValue& value, std::vector<std::string>& unused) {
  check_members(value, unused);
  const auto input = value.find("input");
  return {.instruction = std::string(value.at("instruction").string()),
          .input = input ? std::string(input->string()) : std::string(),
          .output = std::string(value.at("output").string())};
}

std::vector<AlpacaRecord> read_json(const std::filesystem::path& path, const std::string& text,
                                    std::vector<std::string>& unused) {
  const JsonDocument document = JsonDocument::parse(text, origin(path, 0));
  const JsonValue root = document.root();
  std::vector<AlpacaRecord> records;
  for (const simdjson::dom::element item : root.array()) {
    try {
      records.push_back(read_record(root.child(item, records.size()), unused));
    } catch (const Error&) {
      // The record is read again, so that the error names its line: only an error is worth the
      // search for it.
      const JsonOrigin place = origin(path, json_line_of_item(text, records.size()));
      (void)read_record(JsonValue(item, &place, fmt::format("record {}", records.size() + 1)),
                        unused);
      throw;
    }
  }
  return records;
}

std::vector<AlpacaRecord> read_json_lines(const std::filesystem::path& path, std::string_view text,
                                          std::vector<std::string>& unused) {
  std::vector<AlpacaRecord> records;
  std::size_t line = 0;
  while (!text.empty()) {
    ++line;
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (row.find_first_not_of(" \t\r") != std::string_view::npos) {
      const JsonDocument document = JsonDocument::parse(row, origin(path, line));
      records.push_back(read_record(document.root(), unused));
    }
  }
  return records;
}

/// An array of records, one record in each line, or a single one: the first character tells, as
/// it does for other readers, and not the file's ending.
std::vector<AlpacaRecord> read_text(const std::filesystem::path& path, const std::string& text,
                                    std::vector<std::string>& unused) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_array = first != std::string::npos && text[first] == '[';
  if (is_array) {
    return read_json(path, text, unused);
  }
  const std::size_t end_of_line = text.find('\n', first);
  const bool is_long = end_of_line != std::string::npos &&
                       text.find_first_not_of(" \t\r\n", end_of_line) != std::string::npos;
  if (is_long && path.extension() == ".json") {
    if (const auto one = JsonDocument::parse_if_json(text, origin(path, 0))) {
      return {read_record(one->root(), unused)};
    }
  }
  return read_json_lines(path, text, unused);
}

/// Whether Python's str.strip() leaves nothing of the text.
bool is_blank(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (!is_white_space(c) && !(c >= 0x1C && c <= 0x1F)) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::vector<AlpacaRecord> read_alpaca(const std::filesystem::path& path, double percentage,
                                      std::vector<std::string>* unused) {
  if (!(percentage > 0 && percentage <= 100)) {
    throw user_error(kWhere, "dataset_percentage is {}; give a number above 0 and up to 100",
                     percentage);
  }
  const std::string extension = path.extension().string();
  if (extension != ".json" && extension != ".jsonl") {
    throw user_error(kWhere,
                     "{} is neither .json nor .jsonl; give a file of instruction records, or make "
                     "a token file of it by ./tandem prepare",
                     path.string());
  }
  std::string text = read_file(path, kWhere, kMostDatasetBytes);
  text.erase(0, text.size() - without_mark(text).size());
  if (is_valid_utf8(text) && is_blank(text)) {
    throw user_error(kWhere, "{} is empty; give at least one record", path.string());
  }
  std::vector<std::string> names;
  auto records = read_text(path, text, names);
  if (unused != nullptr) {
    *unused = std::move(names);
  }
  const std::size_t all = records.size();
  const auto kept = static_cast<std::size_t>(static_cast<double>(all) * percentage / 100.0);
  if (kept == 0) {
    throw user_error(kWhere, "{} has {} records, {} % of them is none; give at least one record",
                     path.string(), all, percentage);
  }
  records.resize(std::min(kept, all));
  return records;
}

std::string alpaca_question(const AlpacaRecord& record) {
  std::string text = "### Instruction:\n" + record.instruction + "\n\n";
  if (!is_blank(record.input)) {
    text += "### Input:\n" + record.input + "\n\n";
  }
  return text + "### Response:\n";
}

std::string alpaca_text(const AlpacaRecord& record) {
  return alpaca_question(record) + record.output;
}

}  // namespace tandem
