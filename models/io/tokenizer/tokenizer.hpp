// models/io/tokenizer/tokenizer.hpp — converts text to token ids and back, by BPE as a Hugging Face
// tokenizer.json describes it: byte-level, or of characters with bytes to fall back on
// (sentencepiece's, of Phi-3-mini, Llama 2, Mistral and Gemma).
//
// The ids are those of the `tokenizers` library (tests compare). A file that asks for more (other
// models, normalizers, pre-tokenizers) is an error, never an approximation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

class Tokenizer {
 public:
  /// Reads tokenizer.json of the folder, and tokenizer_config.json and special_tokens_map.json
  /// where they exist. Throws Error if a file is missing or malformed (the message has file, place
  /// and value), or asks for something that is not supported.
  static Tokenizer load(const std::filesystem::path& folder);
  /// The same for the text of a tokenizer.json, which errors call `file`. No pad, eos and bos
  /// tokens are known then.
  static Tokenizer parse(std::string_view tokenizer_json, std::string_view file);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Returns the ids of valid UTF-8 text; throws Error for any other text. `add_special_tokens`
  /// adds what the file's post-processor adds (BOS, EOS); special tokens that are spelled out in
  /// the text become their ids in any case. Any thread, several at once.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text,
                                                 bool add_special_tokens = false) const;
  /// Returns the text of the ids. Ids that the tokenizer does not know are left out, and bytes that
  /// are not UTF-8 become U+FFFD. Any thread.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids,
                                   bool skip_special_tokens = false) const;

  /// Returns the id of a token by its spelling ("<|endoftext|>", "\u0120the"), if there is one.
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const;
  /// Returns whether a token is one byte of a character that has no token; it is text only together
  /// with its neighbours.
  [[nodiscard]] bool is_byte(std::int32_t id) const noexcept;
  /// Returns the highest id + 1: a model needs at least this number of embeddings.
  [[nodiscard]] std::int64_t vocab_size() const noexcept;

  /// From tokenizer_config.json.
  [[nodiscard]] std::optional<std::int32_t> pad_id() const noexcept;
  [[nodiscard]] std::optional<std::int32_t> eos_id() const noexcept;
  [[nodiscard]] std::optional<std::int32_t> bos_id() const noexcept;
  [[nodiscard]] std::optional<std::int64_t> model_max_length() const noexcept;

  /// The ids that add_special_tokens puts before and behind the text.
  [[nodiscard]] std::span<const std::int32_t> prefix() const noexcept;
  [[nodiscard]] std::span<const std::int32_t> suffix() const noexcept;
  /// Returns a note on ids that Transformers makes in another way; empty if there is none.
  [[nodiscard]] const std::string& note() const noexcept;

 private:
  struct Impl;
  friend class TokenizerLoader;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct HfConfig;

/// Throws Error if the tokenizer has ids for which the model has no embedding.
void check_tokenizer_fits(const Tokenizer& tokenizer, const HfConfig& config);

/// Returns whether `name` is one of tokenizer.json, tokenizer_config.json, special_tokens_map.json,
/// vocab.json, merges.txt, added_tokens.json, tokenizer.model, chat_template.jinja.
[[nodiscard]] bool is_tokenizer_file(std::string_view name);
/// Returns the bytes of the tokenizer files in the folder.
[[nodiscard]] std::int64_t tokenizer_bytes(const std::filesystem::path& folder);
/// Copies the tokenizer files that exist beside a saved model, each atomically.
void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace tandem
