// models/io/tokenizer/pre_tokenizer.hpp — cuts text into the words that BPE works on, by the
// patterns of tokenizer.json.
//
// PCRE2 with JIT stands in for Oniguruma, which the files were written for. The one difference that
// matters, \s (PCRE2's includes U+180E), is removed by spelling \s as \p{White_Space} before
// compiling. Patterns of published files are matched by WordPattern where the text is ASCII.
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
  /// Error naming the pattern and the place if it does not compile. `where`/`file` are for that
  /// text.
  SplitPattern(std::string pattern, std::string_view file);
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) = delete;

  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  friend class Matcher;
  struct Code;
  std::string text_;
  std::optional<WordPattern> words_;  // the same, where it is one
  std::unique_ptr<Code> code_;
};

/// Room that matching needs; one per thread at a time.
class Matcher {
 public:
  Matcher();
  ~Matcher();
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  /// Matches from now on belong to a text of `bytes` bytes, and have the time that such a text may
  /// take. Before the first call there is no limit.
  void start_text(std::size_t bytes);

  /// First match at or after `from` in valid UTF-8 `text`; false if there is none. Error if the
  /// pattern takes longer than its text may, or matches what lies before `from`. Empty matches are
  /// reported with begin == end.
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
  bool invert = false;  // the matches are what lies between the cuts
};

/// Cuts `pieces` (views into one text) by the step.
void split(const SplitStep& step, Matcher& matcher, std::vector<std::string_view>& pieces,
           std::vector<std::string_view>& scratch);

/// GPT-2's own pattern, which ByteLevel with use_regex stands for.
std::string_view gpt2_pattern();

/// `text` with every character that has a meaning in patterns escaped.
std::string escape_pattern(std::string_view text);

}  // namespace tandem
