#include "models/families/config_members.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "actors/storage/json.hpp"
#include "models/families/family.hpp"

namespace tandem {
namespace {

constexpr std::array kCommon = {
    used("model_type"), used("tie_word_embeddings"), used("dtype"), used("torch_dtype"),
    used("quantization_config"), used("initializer_range", "0.02"), used("pad_token_id"),
    used("bos_token_id"), used("eos_token_id"),
    // Ways of computing that Transformers has for every class.
    fixed("is_causal", "true"), fixed("is_encoder_decoder", "false"),
    fixed("per_layer_config", "null"), fixed("pruned_heads", "{}"),
    // Where a file comes from, and which code reads it.
    harmless("architectures"), harmless("auto_map"), harmless("transformers_version"),
    harmless("_name_or_path"), harmless("name_or_path"), harmless("_commit_hash"),
    harmless("tokenizer_class"), harmless("unsloth_fixed"), harmless("unsloth_version"),
    harmless("model_name"), harmless("quantization_method"),
    // How and what a call returns.
    harmless("use_cache"), harmless("return_dict"), harmless("output_attentions"),
    harmless("output_hidden_states"), harmless("torchscript"), harmless("use_bfloat16"),
    harmless("attn_implementation"), harmless("_attn_implementation"),
    harmless("_attn_implementation_autoset"), harmless("experts_implementation"),
    harmless("chunk_size_feed_forward"), harmless("pretraining_tp"),
    harmless("cache_implementation"), harmless("gradient_checkpointing"),
    // Heads for other tasks.
    harmless("id2label"), harmless("label2id"), harmless("num_labels"), harmless("problem_type"),
    harmless("finetuning_task"), harmless("task_specific_params"), harmless("is_decoder"),
    harmless("cross_attention_hidden_size"), harmless("tie_encoder_decoder"),
    harmless("decoder_start_token_id"), harmless("sep_token_id"), harmless("prefix"),
    // How texts are generated, which generation_config.json says since.
    harmless("max_length"), harmless("min_length"), harmless("do_sample"), harmless("temperature"),
    harmless("top_k"), harmless("top_p"), harmless("typical_p"), harmless("num_beams"),
    harmless("num_beam_groups"), harmless("num_return_sequences"), harmless("early_stopping"),
    harmless("length_penalty"), harmless("repetition_penalty"), harmless("diversity_penalty"),
    harmless("encoder_no_repeat_ngram_size"), harmless("no_repeat_ngram_size"),
    harmless("bad_words_ids"), harmless("begin_suppress_tokens"), harmless("suppress_tokens"),
    harmless("exponential_decay_length_penalty"), harmless("forced_bos_token_id"),
    harmless("forced_eos_token_id"), harmless("output_scores"), harmless("remove_invalid_values"),
    harmless("return_dict_in_generate")};

// A file that leaves one of these out is rare, so that a reader wants to know.
constexpr std::array<std::string_view, 13> kSizes = {"vocab_size",
                                                     "hidden_size",
                                                     "intermediate_size",
                                                     "num_hidden_layers",
                                                     "num_attention_heads",
                                                     "hidden_act",
                                                     "max_position_embeddings",
                                                     "n_embd",
                                                     "n_layer",
                                                     "n_head",
                                                     "n_positions",
                                                     "num_local_experts",
                                                     "num_experts_per_tok"};
// null is a value of theirs.
constexpr std::array<std::string_view, 6> kNullable = {"num_key_value_heads", "sliding_window",
                                                       "pad_token_id",        "bos_token_id",
                                                       "eos_token_id",        "n_inner"};

bool is_one_of(std::span<const std::string_view> keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}

/// The member in the family's list, or else in the list for all families; null: in neither.
const ConfigMember* find_member(const Family& family, std::string_view key) {
  for (const std::span<const ConfigMember> list :
       {family.members, std::span<const ConfigMember>(kCommon)}) {
    const auto found = std::ranges::find(list, key, &ConfigMember::key);
    if (found != list.end()) {
      return &*found;
    }
  }
  return nullptr;
}

bool is_number(const simdjson::dom::element& value) {
  return value.is_double() || value.is_int64() || value.is_uint64();
}

bool equal_json(const simdjson::dom::element& value, std::string_view json) {
  simdjson::dom::parser parser;
  const simdjson::padded_string padded(json);
  const simdjson::dom::element wanted = parser.parse(padded);
  if (is_number(value) && is_number(wanted)) {
    return double(value) == double(wanted);
  }
  return simdjson::minify(value) == simdjson::minify(wanted);
}

/// Throws for what changes the result; collects what no reader knows.
std::vector<std::string> check_members(const JsonValue& root, const Family& family) {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : root.members()) {
    const ConfigMember* member = find_member(family, key);
    if (member == nullptr) {
      unknown.emplace_back(key);
    } else if (member->use == MemberUse::kFixed && !value.is_null() &&
               !equal_json(value.raw(), member->value)) {
      throw value.wrong(
          fmt::format("{} (another way of computing is not supported)", member->value));
    } else if (member->use == MemberUse::kAlias) {
      const auto other = root.find(member->value);
      if (other && !value.is_null() && !equal_json(value.raw(), simdjson::minify(other->raw()))) {
        throw value.error(fmt::format("it is {}, and {}, which means the same, is {}", value.text(),
                                      member->value, other->text()));
      }
    }
  }
  return unknown;
}

/// The list that counts: the family's members, and those of all that it does not name.
std::vector<ConfigMember> members_of(const Family& family) {
  std::vector<ConfigMember> members;
  for (const std::span<const ConfigMember> list :
       {family.members, std::span<const ConfigMember>(kCommon)}) {
    for (const ConfigMember& member : list) {
      if (std::ranges::find(members, member.key, &ConfigMember::key) == members.end()) {
        members.push_back(member);
      }
    }
  }
  return members;
}

/// Whether the member is to be given a value.
bool is_lacking(const JsonValue& root, std::string_view key) {
  const auto found = root.object().at_key(key);
  return found.error() != simdjson::SUCCESS ||
         (found.value_unsafe().is_null() && !is_one_of(kNullable, key));
}

}  // namespace

std::span<const ConfigMember> common_members() { return kCommon; }

std::string completed_config(std::string_view json, std::string_view file, const Family& family,
                             std::vector<std::string>& notes) {
  const JsonDocument document = JsonDocument::parse(
      json, {.where = "model config", .file = std::string(file), .advice = "correct config.json"});
  const JsonValue root = document.root();
  const std::vector<std::string> unknown = check_members(root, family);
  std::string out(json);
  std::vector<std::string_view> given = {};
  const std::vector<ConfigMember> members = members_of(family);
  for (const ConfigMember& member : members) {
    if (member.use != MemberUse::kAlias || is_lacking(root, member.key) ||
        !is_lacking(root, member.value)) {
      continue;
    }
    out = with_json_member(out, member.value, simdjson::minify(root.at(member.key).raw()));
    given.push_back(member.value);
  }
  std::vector<std::string> taken;
  for (const ConfigMember& member : members) {
    if (member.use != MemberUse::kUsed || member.value.empty() || !is_lacking(root, member.key) ||
        is_one_of(given, member.key)) {
      continue;
    }
    out = with_json_member(out, member.key, member.value);
    if (is_one_of(kSizes, member.key)) {
      taken.push_back(fmt::format("{} {}", member.key, member.value));
    }
  }
  if (!taken.empty()) {
    notes.push_back(fmt::format("{} leaves out what Transformers gives a {} model: {}", file,
                                family.model_type, fmt::join(taken, ", ")));
  }
  if (!unknown.empty()) {
    notes.push_back(fmt::format("{} has members that change nothing in a {} model: {}", file,
                                family.model_type, fmt::join(unknown, ", ")));
  }
  return out;
}

std::string model_keys_page(std::span<const Family* const> families) {
  std::string page =
      "# Every member of a model's config.json\n\n"
      "Made from the lists that read it (`models/families/config_members.hpp`); a test keeps the "
      "two\n"
      "equal, and another one compares them with the classes of Transformers. A member that is "
      "absent\n"
      "has the value named here. A fixed one is refused at any other value, because it would "
      "change\n"
      "what the model computes. A member of no list is named in a `note` line: no model of the "
      "family\n"
      "reads it.\n";
  const auto section = [&page](std::string_view title, std::span<const ConfigMember> members) {
    page += fmt::format("\n## {}\n\n| member | is |\n|---|---|\n", title);
    for (const ConfigMember& member : members) {
      std::string text;
      switch (member.use) {
        case MemberUse::kUsed:
          text = member.value.empty() ? "used" : fmt::format("used, `{}` if absent", member.value);
          break;
        case MemberUse::kAlias:
          text = fmt::format("another name of `{}`", member.value);
          break;
        case MemberUse::kFixed:
          text = fmt::format("fixed at `{}`", member.value);
          break;
        case MemberUse::kHarmless:
          text = "without effect";
          break;
      }
      page += fmt::format("| `{}` | {} |\n", member.key, text);
    }
  };
  section("All families", kCommon);
  for (const Family* family : families) {
    std::vector<ConfigMember> members = members_of(*family);
    members.resize(members.size() - kCommon.size() +
                   std::ranges::count_if(kCommon, [&](const ConfigMember& c) {
                     return std::ranges::find(family->members, c.key, &ConfigMember::key) !=
                            family->members.end();
                   }));
    section(family->model_type, members);
  }
  return page;
}

}  // namespace tandem
