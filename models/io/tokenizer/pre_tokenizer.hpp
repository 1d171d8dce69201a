// models/io/tokenizer/pre_tokenizer.hpp — cuts text into the words that BPE works on, by the
// patterns of tokenizer.json.
//
// PCRE2 with JIT stands in for Oniguruma, which the files were written for. The one difference that
// matters, \s (PCRE2's includes U+180E), is removed by spelling \s as \p{White_Space} before
// compiling. WordPattern matches the patterns of published files as long as the text is ASCII.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/io/tokenizer/word_pattern.hpp"

namespace tandem {

/// A compiled pattern; shared by threads, each with its own Matcher.
class SplitPattern {
 public:
  /// Throws Error, which names the pattern and the place, if it does not compile. `file` is for
  /// that message.
  SplitPattern(std::string pattern, std::string_view file);
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) = delete;

  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  friend class Matcher;
  struct Code;
  std::string text_;
  std::optional<WordPattern> words_;  // the same pattern, if it is one of these
  std::unique_ptr<Code> code_;
};

/// Working memory of matching. One thread uses it at a time.
class Matcher {
 public:
  Matcher();
  ~Matcher();
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  /// Begins a text of `bytes` bytes. Its matches together have the time that a text of this size
  /// may take. Before the first call there is no limit.
  void start_text(std::size_t bytes);

  /// Finds the first match at or after `from` in valid UTF-8 `text`; returns false if there is
  /// none. Throws Error if the matches take longer than the text may, or if a match begins before
  /// `from`. Empty matches are reported with begin == end.
  bool find(const SplitPattern& pattern, std::string_view text, std::size_t from,
            std::size_t& begin, std::size_t& end);

 private:
  struct Room;
  std::unique_ptr<Room> room_;
};

/// One step of the pre-tokenizer: cut every piece at the pattern's matches.
struct SplitStep {
  // A match becomes a piece of its own, nothing, or the end of the piece before it (not of
  // another match).
  enum class Keep : unsigned char { kIsolated, kRemoved, kWithPrevious };
  SplitPattern pattern;
  Keep keep = Keep::kIsolated;
  bool invert = false;  // the text between matches counts as the match
};

/// Cuts `pieces` (views into one text) by the step.
void split(const SplitStep& step, Matcher& matcher, std::vector<std::string_view>& pieces,
           std::vector<std::string_view>& scratch);

/// Returns GPT-2's own pattern, which ByteLevel uses if use_regex is set.
std::string_view gpt2_pattern();

/// Returns `text` with an escape before every character that has a meaning in patterns.
std::string escape_pattern(std::string_view text);

}  // namespace tandem
