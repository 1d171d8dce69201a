// models/io/tokenizer/added_tokens.hpp — tokens that are cut out of the text before BPE sees it
// ("<|endoftext|>").
//
// The rules of Hugging Face's AddedVocabulary apply: the leftmost match counts, and of several
// there the longest. Tokens that are not `normalized` are looked for in the raw text, the others in
// the normalized rest.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool single_word = false;  // matches only if no word character touches it
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space behind it
  bool normalized = false;
  bool special = false;  // left out by decode(skip_special_tokens)
};

class AddedTokenMatcher {
 public:
  struct Part {
    std::string_view text;
    std::int32_t id = -1;  // of the token; -1: ordinary text
  };

  /// Empty contents are not allowed; of two equal contents the later one counts.
  void add(AddedToken token);
  /// Takes the tokens with this id out. Call it before finish().
  void remove(std::int32_t id);
  /// Makes the added tokens known to split(). Call it after the last add().
  void finish();
  /// Cuts valid UTF-8 text into ordinary parts and tokens, in order; parts are never empty, except
  /// for tokens.
  void split(std::string_view text, std::vector<Part>& parts) const;
  [[nodiscard]] bool empty() const noexcept { return tokens_.empty(); }

 private:
  [[nodiscard]] const AddedToken* match_at(std::string_view text, std::size_t at) const noexcept;

  std::vector<AddedToken> tokens_;  // after finish(): by content, ascending
  // [token] The longest other token with which it begins; itself if there is none.
  std::vector<std::uint32_t> shorter_;
  std::array<bool, 256> begins_{};  // [byte] a token begins with it
  std::optional<char> only_begin_;  // the byte with which all of them begin
};

}  // namespace tandem
