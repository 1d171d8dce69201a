#include "models/data/record_members.hpp"

#include <algorithm>

namespace tandem {
namespace {

// Names with blanks between them.
constexpr std::string_view kUsed = "input instruction output";
// They describe a record, or are another form of what is read.
constexpr std::string_view kHarmless =
    "_id author authors categories category chosen_model completion conv_id conversation_hash "
    "conversation_id conversations created created_at data_source dataset date difficulty "
    "domain generator hash id idx index info lang language languages length lengths license "
    "messages meta metadata model model_name n_tokens name num_tokens num_turns origin "
    "original_index parallel_tool_calls prompt prompt_id quality row_id sample_id score "
    "source sources special_tokens_mask split subset tag tags task task_type text timestamp "
    "title token_count topic topics total_tokens turn turns type updated_at url uuid version "
    "weight";
// They would change the text, or which of it is learnt and how much.
constexpr std::string_view kRefused =
    "audio audios cu_seqlens documents history image images loss_weight loss_weights "
    "mm_token_type_ids position_ids sample_weight segment_ids seq_lengths sequence_lengths "
    "system system_prompt token_weights tools video videos weight weights";
// An answer that its record calls a bad one is none to learn.
constexpr std::string_view kVerdicts = "kto_tag label";

bool is_among(std::string_view member, std::string_view names) {
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(' '), names.size());
    if (names.substr(0, end) == member) {
      return true;
    }
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

bool is_empty(const JsonValue& value) {
  const simdjson::dom::element raw = value.raw();
  return value.is_null() || (raw.is_string() && value.string().empty()) ||
         (value.is_array() && value.array().size() == 0) ||
         (value.is_object() && value.object().size() == 0);
}

}  // namespace

RecordMember meaning_of(std::string_view member, const JsonValue& value) {
  if (is_among(member, kUsed)) {
    return RecordMember::kUsed;
  }
  if (is_empty(value)) {
    return RecordMember::kHarmless;
  }
  const simdjson::dom::element raw = value.raw();
  if (is_among(member, kVerdicts) && raw.is_bool() && !value.boolean()) {
    return RecordMember::kBadAnswer;
  }
  if (is_among(member, kRefused)) {
    const bool is_one =
        (raw.is_number() && value.number() == 1) || (raw.is_bool() && value.boolean());
    return member == "weight" && is_one ? RecordMember::kHarmless : RecordMember::kRefused;
  }
  return is_among(member, kHarmless) ? RecordMember::kHarmless : RecordMember::kUnknown;
}

}  // namespace tandem
