#include "models/data/alpaca.hpp"

#include <algorithm>
#include <array>

#include "actors/storage/file.hpp"
#include "actors/storage/json.hpp"
#include "models/io/tokenizer/byte_level.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "dataset";
constexpr std::uint64_t kMostDatasetBytes = std::uint64_t{2} << 30;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kAdvice =
    "every record needs the strings instruction and output, and may have input; of other formats "
    "./tandem train makes a token file, and for ranks that something else starts ./tandem prepare "
    "--model_name D --dataset_name F --output X.tokens, which --dataset_name X.tokens reads";

JsonOrigin origin(const std::filesystem::path& path, std::size_t line) {
  return {.where = std::string(kWhere),
          .file = line > 0 ? fmt::format("{}:{}", path.string(), line) : path.string(),
          .advice = std::string(kAdvice)};
}

// Members that others write into instruction records and that would change the text: what stands
// before the instruction, or belongs to another form.
constexpr std::array<std::string_view, 8> kOtherMembers = {
    "system", "system_prompt", "history", "tools", "images", "videos", "audios", "weight"};

bool says_nothing(const JsonValue& value) {
  const simdjson::dom::element raw = value.raw();
  return (raw.is_string() && value.string().empty()) ||
         (value.is_array() && value.array().size() == 0) ||
         (raw.is_number() && value.number() == 1);
}

AlpacaRecord read_record(const JsonValue& value) {
  for (const std::string_view name : kOtherMembers) {
    if (const auto other = value.find(name); other && !says_nothing(*other)) {
      throw value.error(fmt::format(
          "\"{}\" would change what is learnt, and instruction records are read without it; take "
          "it out, or give the record as messages",
          name));
    }
  }
  const auto input = value.find("input");
  return {.instruction = std::string(value.at("instruction").string()),
          .input = input ? std::string(input->string()) : std::string(),
          .output = std::string(value.at("output").string())};
}

std::vector<AlpacaRecord> read_json(const std::filesystem::path& path, const std::string& text) {
  const JsonDocument document = JsonDocument::parse(text, origin(path, 0));
  const JsonValue root = document.root();
  std::vector<AlpacaRecord> records;
  for (const simdjson::dom::element item : root.array()) {
    try {
      records.push_back(read_record(root.child(item, records.size())));
    } catch (const Error&) {
      // The record is read again, so that the error names its line: only an error is worth the
      // search for it.
      const JsonOrigin place = origin(path, json_line_of_item(text, records.size()));
      (void)read_record(JsonValue(item, &place, fmt::format("record {}", records.size() + 1)));
      throw;
    }
  }
  return records;
}

std::vector<AlpacaRecord> read_json_lines(const std::filesystem::path& path,
                                          std::string_view text) {
  std::vector<AlpacaRecord> records;
  std::size_t line = 0;
  while (!text.empty()) {
    ++line;
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (row.find_first_not_of(" \t\r") != std::string_view::npos) {
      const JsonDocument document = JsonDocument::parse(row, origin(path, line));
      records.push_back(read_record(document.root()));
    }
  }
  return records;
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

std::vector<AlpacaRecord> read_alpaca(const std::filesystem::path& path, double percentage) {
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
  if (text.starts_with(kByteOrderMark)) {  // editors of some systems put it before a text
    text.erase(0, kByteOrderMark.size());
  }
  if (is_valid_utf8(text) && is_blank(text)) {
    throw user_error(kWhere, "{} is empty; give at least one record", path.string());
  }
  auto records = extension == ".json" ? read_json(path, text) : read_json_lines(path, text);
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
