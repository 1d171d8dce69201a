// models/io/tokenizer/tokenizer_load.hpp — the steps of building a Tokenizer. Only tokenizer_*.cpp
// include it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "actors/storage/json.hpp"
#include "models/io/tokenizer/tokenizer.hpp"
#include "models/io/tokenizer/tokenizer_impl.hpp"

namespace tandem {

class TokenizerLoader {
 public:
  explicit TokenizerLoader(std::string_view file);

  /// Reads tokenizer.json. `of_class`: the class's steps, which replace the file's
  /// (steps_of_class()).
  void read(const JsonValue& root, const std::optional<JsonValue>& of_class = std::nullopt);
  /// Reads tokenizer_config.json, into which special_tokens_map.json and the class's own tokens
  /// were put, as Transformers' classes do (tools/prepare/tokenizer.py has the same rules).
  void read_config(const JsonValue& root, std::string_view class_name);
  [[nodiscard]] std::size_t size() const noexcept { return impl_->tokens.size(); }
  [[nodiscard]] bool knows(std::string_view token) const {
    return impl_->id_of.find(std::string(token)) != impl_->id_of.end();
  }
  /// Takes the end token of GPT-2's Python class if no file names one: GPT-2's published files do
  /// not.
  void default_end_token();
  void set_note(std::string note) { impl_->note = std::move(note); }
  Tokenizer finish();

 private:
  using Impl = Tokenizer::Impl;

  /// Finds out whether the vocabulary spells bytes (ByteLevel) or characters (sentencepiece's, with
  /// byte_fallback).
  void find_spelling(const JsonValue& root);
  void read_model(const JsonValue& model);
  void read_unknown(const JsonValue& owner);
  void read_vocabulary(const JsonValue& vocabulary);
  void read_merges(const JsonValue& merges);
  static std::pair<std::string_view, std::string_view> halves(const JsonValue& merge);
  void set_token(std::int32_t id, std::string_view spelled, bool special);
  void add_token(const JsonValue& token, std::int64_t id);
  void read_normalizer(const JsonValue& part);
  void read_pre_tokenizer(const JsonValue& part);
  void read_metaspace(const JsonValue& part);
  void read_decoder(const JsonValue& root);
  static std::string bytes_of_characters(std::string_view spelled, bool& is_byte);
  void read_split(const JsonValue& part);
  void add_split(std::string pattern, SplitStep::Keep keep, bool invert);
  void read_post_processor(const JsonValue& part);
  void read_template(const JsonValue& part);
  void read_added_tokens(const JsonValue& decoder);
  void read_special_tokens(const JsonValue& root);
  void add_special(const JsonValue& token);
  void read_prefix_space(const JsonValue& root);
  void wrap(std::vector<std::int32_t> before, const std::vector<std::int32_t>& behind);
  std::vector<std::int32_t> template_ids(const JsonValue& part, std::string_view name);
  [[nodiscard]] std::int32_t known_id(const JsonValue& value) const;
  std::optional<std::int32_t> named_token(const JsonValue& root, std::string_view key) const;

  std::unique_ptr<Impl> impl_;
  std::string class_name_ = {};       // of Transformers
  bool byte_level_seen_ = false;      // the pre-tokenizer's step
  std::size_t byte_level_at_ = 0;     // among the steps
  std::set<std::string> added_ = {};  // tokens that are looked for in a text
  NormalRoom added_token_room_{std::size_t{1} << 20};
};

}  // namespace tandem
