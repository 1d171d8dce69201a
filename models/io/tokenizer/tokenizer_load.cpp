// Builds a Tokenizer from tokenizer.json: vocabulary and merges, added tokens, normalizer,
// pre-tokenizer, post-processor.
#include "models/io/tokenizer/tokenizer_load.hpp"

#include <algorithm>
#include <limits>

#include "models/io/tokenizer/byte_level.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

// Far above any published vocabulary; keeps one absurd id from asking for gigabytes.
constexpr std::int64_t kMostId = (1 << 24) - 1;

}  // namespace

TokenizerLoader::TokenizerLoader(std::string_view file) : impl_(std::make_unique<Impl>()) {
  impl_->file = std::string(file);
}

Tokenizer TokenizerLoader::finish() {
  impl_->raw_tokens.finish();
  impl_->normalized_tokens.finish();
  return Tokenizer(std::move(impl_));
}

void TokenizerLoader::read(const JsonValue& root, const std::optional<JsonValue>& of_class) {
  find_spelling(root);
  const bool is_classes = of_class && !impl_->byte_level;
  const JsonValue& steps = is_classes ? *of_class : root;
  read_model(root.at("model"));
  impl_->fuse_unknown = impl_->fuse_unknown || is_classes;
  read_unknown(is_classes ? steps : root.at("model"));
  if (const auto normalizer = steps.find("normalizer")) {
    read_normalizer(*normalizer);
  }
  if (const auto added = root.find("added_tokens")) {
    for (const JsonValue& token : added->items()) {
      add_token(token, token.at("id").integer(0, kMostId));
    }
  }
  const auto pre_tokenizer = steps.find("pre_tokenizer");
  if (pre_tokenizer) {
    read_pre_tokenizer(*pre_tokenizer);
  }
  read_decoder(root);
  if (const auto processor = root.find("post_processor")) {
    read_post_processor(*processor);
  }
}

void TokenizerLoader::read_model(const JsonValue& model) {
  const auto type = model.find("type");  // GPT-2's published file has none
  if (type && type->string() != "BPE") {
    throw type->wrong("\"BPE\" (other tokenizer models are not supported)");
  }
  if (const auto dropout = model.find("dropout"); dropout && dropout->number() != 0) {
    throw dropout->wrong("null or 0 (random merges are not supported)");
  }
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const auto affix = model.find(key); affix && !affix->string().empty()) {
      throw affix->wrong("null or empty (byte-level BPE has no affixes)");
    }
  }
  impl_->byte_fallback = bool_or(model, "byte_fallback", false);
  if (impl_->byte_fallback && impl_->byte_level) {
    throw model.at("byte_fallback").wrong("false (byte-level BPE needs no fallback)");
  }
  impl_->ignore_merges = bool_or(model, "ignore_merges", false);
  impl_->fuse_unknown = bool_or(model, "fuse_unk", false);
  read_vocabulary(model.at("vocab"));
  read_merges(model.at("merges"));
}

void TokenizerLoader::read_unknown(const JsonValue& owner) {
  if (const auto unknown = owner.find("unk_token"); unknown && !unknown->string().empty()) {
    const auto found = impl_->id_of.find(unknown->string());
    if (found == impl_->id_of.end()) {
      throw unknown->error(fmt::format("{} is not in the vocabulary", unknown->text()));
    }
    impl_->unknown_id = found->second;
  }
}

void TokenizerLoader::read_vocabulary(const JsonValue& vocabulary) {
  const simdjson::dom::object object = vocabulary.object();
  std::int64_t highest = -1;
  for (const auto& [token, value] : object) {
    std::int64_t id = -1;
    if (value.get(id) != simdjson::SUCCESS || id < 0 || id > kMostId) {
      throw vocabulary.child(value, token).wrong(fmt::format("an id from 0 to {}", kMostId));
    }
    highest = std::max(highest, id);
  }
  if (highest < 0) {
    throw vocabulary.error("the vocabulary is empty");
  }
  impl_->tokens.resize(static_cast<std::size_t>(highest) + 1);
  impl_->id_of.reserve(object.size() * 2);
  for (const auto& [token, value] : object) {
    const auto id = static_cast<std::int32_t>(value.get_int64().value_unsafe());
    if (impl_->tokens[static_cast<std::size_t>(id)].known) {
      throw vocabulary.child(value, token)
          .error(fmt::format("the id {} already belongs to {}", id,
                             json_quote(impl_->tokens[static_cast<std::size_t>(id)].spelled)));
    }
    set_token(id, token, false);
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const std::string spelled = impl_->byte_level ? byte_level_char(static_cast<std::uint8_t>(byte))
                                                  : fmt::format("<0x{:02X}>", byte);
    const auto found = impl_->id_of.find(spelled);
    impl_->byte_ids[byte] = found == impl_->id_of.end() ? -1 : found->second;
  }
  if (impl_->ignore_merges) {
    for (const auto& [token, id] : impl_->id_of) {
      auto bytes = impl_->byte_level ? bytes_of_byte_level(token) : std::string(token);
      if (bytes) {
        impl_->id_of_bytes.emplace(std::move(*bytes), id);
      }
    }
  }
}

void TokenizerLoader::set_token(std::int32_t id, std::string_view spelled, bool special) {
  Impl::Token& token = impl_->tokens[static_cast<std::size_t>(id)];
  token.spelled = std::string(spelled);
  token.bytes = impl_->byte_level ? bytes_of_byte_level(spelled).value_or(token.spelled)
                                  : bytes_of_characters(spelled, token.is_byte);
  token.known = true;
  token.special = special;
  impl_->id_of.emplace(token.spelled, id);
}

namespace {

/// The two halves of a merge, in either spelling; nothing: it is no merge, or not certainly one. A
/// JsonValue for each of a hundred thousand takes longer than everything else.
std::optional<std::pair<std::string_view, std::string_view>> plain_halves(
    simdjson::dom::element merge) {
  std::pair<std::string_view, std::string_view> out;
  if (simdjson::dom::array list; merge.get(list) == simdjson::SUCCESS) {
    if (list.size() != 2 || list.at(0).get(out.first) != simdjson::SUCCESS ||
        list.at(1).get(out.second) != simdjson::SUCCESS) {
      return std::nullopt;
    }
  } else if (std::string_view text; merge.get(text) == simdjson::SUCCESS) {
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
      return std::nullopt;
    }
    out = {text.substr(0, space), text.substr(space + 1)};
  }
  return out.first.empty() || out.second.empty() ? std::nullopt : std::optional(out);
}

/// Whether a mark stands behind something else.
bool has_mark_inside(std::string_view token) {
  while (token.starts_with(kSpaceMark)) {
    token.remove_prefix(kSpaceMark.size());
  }
  return token.find(kSpaceMark) != std::string_view::npos;
}

}  // namespace

/// The two halves of a merge, in either spelling, with the error where it is none.
std::pair<std::string_view, std::string_view> TokenizerLoader::halves(const JsonValue& merge) {
  std::pair<std::string_view, std::string_view> out;
  if (merge.is_array()) {
    const auto items = merge.items();
    if (items.size() != 2) {
      throw merge.wrong("a pair of two tokens");
    }
    out = {items[0].string(), items[1].string()};
  } else {
    const std::string_view text = merge.string();
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
      throw merge.wrong("two tokens with one space between");
    }
    out = {text.substr(0, space), text.substr(space + 1)};
  }
  if (out.first.empty() || out.second.empty()) {
    // Joining with nothing gives a token back, which could be merged for ever.
    throw merge.wrong("two tokens that are not empty");
  }
  return out;
}

void TokenizerLoader::read_merges(const JsonValue& merges) {
  const simdjson::dom::array list = merges.array();
  impl_->merges = MergeTable(list.size());
  impl_->cuts_at_marks =
      !impl_->byte_level && !impl_->ignore_merges && impl_->id_of.contains(kSpaceMark);
  std::string joined;
  std::int32_t joined_id = -1;
  std::uint32_t rank = 0;
  for (const simdjson::dom::element element : list) {
    const auto bad = [&](std::string_view complaint) {
      return merges.child(element, rank).error(complaint);
    };
    const auto plain = plain_halves(element);
    const auto [left, right] = plain ? *plain : halves(merges.child(element, rank));
    const auto id = [&](std::string_view token) {
      const auto found = impl_->id_of.find(token);
      if (found == impl_->id_of.end()) {
        throw bad(fmt::format("{} is not in the vocabulary", json_quote(token)));
      }
      return found->second;
    };
    joined.assign(left).append(right);
    impl_->cuts_at_marks = impl_->cuts_at_marks && !has_mark_inside(joined);
    const std::int32_t left_id = id(left);
    const std::int32_t right_id = id(right);
    // Most vocabularies list what merges make in the merges' order.
    const auto next = static_cast<std::size_t>(joined_id) + 1;
    const bool is_next = next < impl_->tokens.size() && impl_->tokens[next].known &&
                         impl_->tokens[next].spelled == joined;
    joined_id = is_next ? static_cast<std::int32_t>(next) : id(joined);
    if (!impl_->merges.add(left_id, right_id, rank, joined_id)) {
      throw bad("the same two tokens are merged twice");
    }
    ++rank;
  }
}

void TokenizerLoader::add_token(const JsonValue& token, std::int64_t id) {
  if (id < 0 || id > kMostId) {
    throw token.error(fmt::format("the id {} is not from 0 to {}", id, kMostId));
  }
  AddedToken added;
  const JsonValue content = token.at("content");
  added.content = std::string(content.string());
  added.id = static_cast<std::int32_t>(id);
  added.special = bool_or(token, "special", false);
  added.single_word = bool_or(token, "single_word", false);
  added.lstrip = bool_or(token, "lstrip", false);
  added.rstrip = bool_or(token, "rstrip", false);
  added.normalized = bool_or(token, "normalized", !added.special);
  if (added.content.empty()) {
    throw content.wrong("a text that is not empty");
  }
  const auto same_text = impl_->id_of.find(added.content);
  if (same_text != impl_->id_of.end() && same_text->second != added.id) {
    throw token.error(fmt::format("{} has the id {} here and {} elsewhere",
                                  json_quote(added.content), added.id, same_text->second));
  }
  if (!added_.insert(added.content).second) {
    impl_->raw_tokens.remove(added.id);
    impl_->normalized_tokens.remove(added.id);
  }
  const auto at = static_cast<std::size_t>(added.id);
  if (at >= impl_->tokens.size()) {
    impl_->tokens.resize(at + 1);
  }
  if (same_text == impl_->id_of.end() && impl_->tokens[at].known) {
    throw token.error(fmt::format("the id {} of {} already belongs to {}", added.id,
                                  json_quote(added.content),
                                  json_quote(impl_->tokens[at].spelled)));
  }
  if (same_text == impl_->id_of.end()) {
    set_token(added.id, added.content, added.special);
  }
  impl_->tokens[at].special = added.special;
  if (added.normalized) {
    added.content = impl_->normalized(added.content, added_token_room_);
  }
  if (!added.content.empty()) {
    (added.normalized ? impl_->normalized_tokens : impl_->raw_tokens).add(std::move(added));
  }
}

}  // namespace tandem
