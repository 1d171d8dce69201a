// models/io/tokenizer/word_pattern.hpp — the patterns that published tokenizers cut words by, as
// code: ten times as fast as an engine for patterns.
//
// Invariant: a match is the pattern's. A match that depends on a character beyond ASCII is left to
// the engine, match by match, so that no table of Unicode stands here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem {

/// A pattern of the family that GPT-2 began: contractions, letters, digits, other characters and
/// white space, in this order. One of them matches wherever a text goes on.
class WordPattern {
 public:
  /// Nothing: the pattern is not of this family.
  static std::optional<WordPattern> parse(std::string_view pattern);

  /// The end of the match that begins at `at`, which lies before the text's end; `at` itself: a
  /// character beyond ASCII has a say.
  [[nodiscard]] std::size_t match(std::string_view text, std::size_t at) const noexcept;

 private:
  // 's|'t|'re|'ve|'m|'ll|'d: before all else, or the end of a word.
  enum class Contractions : std::uint8_t { kNone, kFirst, kBehindLetters };
  // The character before letters: a space, or any character but letters, digits and line ends.
  enum class Lead : std::uint8_t { kSpace, kAny };

  Contractions contractions_ = Contractions::kNone;
  bool fold_contractions_ = false;  // either case
  Lead lead_ = Lead::kSpace;
  bool cased_ = false;           // a word's capitals stand before its small letters
  std::size_t most_digits_ = 0;  // 0: any number, with a space before them
  std::string_view tail_ = "";   // taken along behind other characters
  bool line_ends_ = false;       // white space up to its last line end is a match
};

}  // namespace tandem
