#include "models/io/folder_members.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/io/adapter_keys.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMostBytes = 64u << 20;

constexpr FileMember used(std::string_view key) { return {key, FileMemberUse::kUsed}; }
constexpr FileMember refused(std::string_view key) { return {key, FileMemberUse::kRefused}; }
constexpr FileMember named(std::string_view key, std::string_view neutral = {}) {
  return {key, FileMemberUse::kNamed, neutral};
}
constexpr FileMember harmless(std::string_view key) { return {key, FileMemberUse::kHarmless}; }

constexpr std::array kTokenizerMembers = {
    used("tokenizer_class"), used("chat_template"), used("model_max_length"), used("max_len"),
    used("added_tokens_decoder"), used("bos_token"), used("eos_token"), used("unk_token"),
    used("sep_token"), used("pad_token"), used("cls_token"), used("mask_token"),
    used("additional_special_tokens"), used("extra_special_tokens"),
    used("model_specific_special_tokens"), used("add_prefix_space"), used("legacy"),
    // Other ids, of texts that hold special tokens, or of all.
    refused("split_special_tokens"), refused("fix_mistral_regex"),
    // The post-processor of tokenizer.json counts.
    harmless("add_bos_token"), harmless("add_eos_token"), harmless("post_processor"),
    // How batches are padded and cut, which each program says itself.
    harmless("padding_side"), harmless("truncation_side"), harmless("max_length"),
    harmless("stride"), harmless("truncation_strategy"), harmless("truncation"),
    harmless("pad_to_multiple_of"), harmless("pad_token_type_id"), harmless("padding"),
    harmless("tokenizer_padding"), harmless("tokenizer_truncation"), harmless("_json_padding"),
    harmless("_json_truncation"), harmless("model_input_names"),
    // How ids become a text for display.
    harmless("clean_up_tokenization_spaces"),
    harmless("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"),
    harmless("errors"), harmless("spaces_between_special_tokens"),
    // How answers are parsed.
    harmless("response_schema"), harmless("response_template"),
    // Read by slow tokenizers alone, which have no tokenizer.json.
    harmless("sp_model_kwargs"), harmless("use_default_system_prompt"), harmless("from_slow"),
    harmless("slow_tokenizer_class"), harmless("do_lower_case"), harmless("keep_accents"),
    harmless("remove_space"), harmless("unk_id"), harmless("_spm_precompiled_charsmap"),
    // Descriptions of files, classes and versions.
    harmless("vocab"), harmless("merges"), harmless("vocab_file"), harmless("merges_file"),
    harmless("tokenizer_file"), harmless("tokenizer_object"), harmless("gguf_file"),
    harmless("vocab_size"), harmless("name_or_path"), harmless("special_tokens_map_file"),
    harmless("init_inputs"), harmless("auto_map"), harmless("processor_class"),
    harmless("_commit_hash"), harmless("verbose"), harmless("device_map"), harmless("backend"),
    harmless("is_local"), harmless("local_files_only"), harmless("files_loaded"),
    harmless("trust_remote_code"), harmless("use_fast"), harmless("transformers_version"),
    harmless("unsloth_version")};

constexpr std::array kGenerationMembers = {
    used("eos_token_id"),
    // Which token comes next.
    named("do_sample", "false"), named("temperature", "1"), named("top_k", "0"),
    named("top_p", "1"), named("min_p"), named("top_h"), named("typical_p", "1"),
    named("epsilon_cutoff", "0"), named("eta_cutoff", "0"), named("repetition_penalty", "1"),
    named("no_repeat_ngram_size", "0"), named("bad_words_ids"), named("suppress_tokens"),
    named("begin_suppress_tokens"), named("sequence_bias"), named("guidance_scale", "1"),
    named("watermarking_config"), named("penalty_alpha", "0"), named("dola_layers"),
    named("forced_bos_token_id"), named("forced_eos_token_id"),
    named("exponential_decay_length_penalty"), named("renormalize_logits", "false"),
    named("remove_invalid_values", "false"), named("token_healing", "false"),
    // Which of several texts is given.
    named("num_beams", "1"), named("num_beam_groups", "1"), named("diversity_penalty", "0"),
    named("length_penalty", "1"), named("early_stopping", "false"), named("constraints"),
    named("force_words_ids"), named("num_return_sequences", "1"),
    // Where a text ends.
    named("max_length", "20"), named("max_new_tokens"), named("min_length", "0"),
    named("min_new_tokens", "0"), named("max_time"), named("stop_strings"),
    // Ids that a text of one row never meets.
    harmless("pad_token_id"), harmless("bos_token_id"), harmless("decoder_start_token_id"),
    // Only models with an encoder obey these.
    harmless("encoder_repetition_penalty"), harmless("encoder_no_repeat_ngram_size"),
    // How it is computed, with the same result.
    harmless("use_cache"), harmless("cache_implementation"), harmless("cache_config"),
    harmless("max_cache_len"), harmless("return_legacy_cache"), harmless("use_mtp"),
    harmless("is_assistant"), harmless("num_assistant_tokens"),
    harmless("num_assistant_tokens_schedule"), harmless("assistant_confidence_threshold"),
    harmless("prompt_lookup_num_tokens"), harmless("max_matching_ngram_size"),
    harmless("assistant_early_exit"), harmless("assistant_lookbehind"),
    harmless("target_lookbehind"), harmless("assistant_ensemble_weight"),
    harmless("speculation_type"), harmless("compile_config"), harmless("disable_compile"),
    harmless("continuous_batching_config"), harmless("low_memory"), harmless("prefill_chunk_size"),
    // These choose values that are given beside the text.
    harmless("output_attentions"), harmless("output_hidden_states"), harmless("output_scores"),
    harmless("output_logits"), harmless("return_dict_in_generate"), harmless("return_dict"),
    // Descriptions.
    harmless("transformers_version"), harmless("_from_model_config"), harmless("_commit_hash"),
    harmless("generation_kwargs"), harmless("task_specific_params"), harmless("chat_format"),
    harmless("max_window_size"), harmless("unsloth_version")};

const FileMember* find(std::span<const FileMember> members, std::string_view key) {
  const auto found = std::ranges::find(members, key, &FileMember::key);
  return found == members.end() ? nullptr : &*found;
}

bool says_nothing(const JsonValue& value) {
  const simdjson::dom::element raw = value.raw();
  return value.is_null() || (raw.is_bool() && !value.boolean()) ||
         (raw.is_string() && value.string().empty()) ||
         (value.is_array() && value.array().size() == 0) ||
         (value.is_object() && value.object().size() == 0);
}

bool is_neutral(const FileMember& member, const JsonValue& value) {
  if (says_nothing(value)) {
    return true;
  }
  const simdjson::dom::element raw = value.raw();
  return raw.is_number() && !member.neutral.empty() &&
         fmt::format("{:g}", value.number()) == member.neutral;
}

std::optional<JsonDocument> load(const fs::path& file, std::string_view where) {
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) {
    return std::nullopt;
  }
  return JsonDocument::load(
      file, {std::string(where), file.string(), "correct the file or download it again"},
      kMostBytes);
}

void note_unknown(const fs::path& file, std::span<const std::string> unknown,
                  std::vector<std::string>& notes) {
  if (!unknown.empty()) {
    notes.push_back(fmt::format("{} has members that nothing reads: {}", file.string(),
                                fmt::join(unknown, ", ")));
  }
}

std::string_view word(FileMemberUse use) {
  switch (use) {
    case FileMemberUse::kUsed:
      return "used";
    case FileMemberUse::kRefused:
      return "refused";
    case FileMemberUse::kNamed:
      return "left aside, named by `generate`";
    case FileMemberUse::kHarmless:
      return "without effect";
  }
  return {};
}

}  // namespace

std::span<const FileMember> tokenizer_config_members() { return kTokenizerMembers; }

std::span<const FileMember> generation_config_members() { return kGenerationMembers; }

void refuse_tokenizer_members(const JsonValue& root) {
  for (const FileMember& member : kTokenizerMembers) {
    const auto value = root.find(member.key);
    if (member.use == FileMemberUse::kRefused && value && !says_nothing(*value)) {
      throw value->error(fmt::format("{} is {}, which gives other ids than are made here",
                                     member.key, value->text()));
    }
  }
}

std::vector<std::string> tokenizer_config_notes(const fs::path& folder) {
  std::vector<std::string> notes;
  const fs::path file = folder / "tokenizer_config.json";
  if (const auto document = load(file, "tokenizer")) {
    std::vector<std::string> unknown;
    for (const auto& [key, value] : document->root().members()) {
      if (find(kTokenizerMembers, key) == nullptr && !key.ends_with(kTokenEnding)) {
        unknown.emplace_back(key);
      }
    }
    note_unknown(file, unknown, notes);
  }
  return notes;
}

std::vector<std::string> generation_config_notes(const fs::path& folder) {
  std::vector<std::string> notes;
  const fs::path file = folder / "generation_config.json";
  const auto document = load(file, "generate");
  if (!document) {
    return notes;
  }
  std::vector<std::string> unknown;
  std::vector<std::string> aside;
  for (const auto& [key, value] : document->root().members()) {
    const FileMember* member = find(kGenerationMembers, key);
    if (member == nullptr) {
      unknown.emplace_back(key);
    } else if (member->use == FileMemberUse::kNamed && !is_neutral(*member, value)) {
      aside.push_back(fmt::format("{} {}", key, value.text()));
    }
  }
  if (!aside.empty()) {
    notes.push_back(fmt::format("{} asks Transformers for {}; here the flags alone count",
                                file.string(), fmt::join(aside, ", ")));
  }
  note_unknown(file, unknown, notes);
  return notes;
}

std::string folder_keys_page() {
  std::string page =
      "# Every member of the files beside config.json\n\n"
      "Made from the lists in `models/io/folder_members.cpp` and `models/io/adapter_keys.hpp`; a "
      "test "
      "keeps\n"
      "page and lists equal, and another one compares them with Transformers and PEFT. A refused "
      "member\n"
      "may be null, false or empty. In `tokenizer_config.json` every other member that ends in "
      "`_token`\n"
      "names a special token. A member of no list is named in a `note` line; in "
      "`adapter_config.json` it\n"
      "is refused.\n";
  const auto section = [&page](std::string_view title, std::span<const FileMember> members) {
    page += fmt::format("\n## {}\n\n| member | is |\n|---|---|\n", title);
    for (const FileMember& member : members) {
      page += fmt::format("| `{}` | {} |\n", member.key, word(member.use));
    }
  };
  section("tokenizer_config.json", kTokenizerMembers);
  section("generation_config.json", kGenerationMembers);
  std::vector<FileMember> adapter;
  const auto add = [&adapter](const auto& keys, FileMemberUse use) {
    for (const std::string_view key : keys) {
      adapter.push_back({key, use});
    }
  };
  add(kReadAdapterKeys, FileMemberUse::kUsed);
  add(kRefusedAdapterKeys, FileMemberUse::kRefused);
  add(kHarmlessAdapterKeys, FileMemberUse::kHarmless);
  section("adapter_config.json", adapter);
  return page;
}

}  // namespace tandem
