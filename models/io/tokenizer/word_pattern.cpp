#include "models/io/tokenizer/word_pattern.hpp"

#include <array>
#include <utility>

namespace tandem {
namespace {

enum class Kind : std::uint8_t { kOther, kSmall, kCapital, kDigit, kSpace, kLineEnd, kBeyond };

constexpr std::array<Kind, 256> kinds() {
  std::array<Kind, 256> kinds{};
  for (std::size_t c = 0; c < kinds.size(); ++c) {
    kinds[c] = c >= 0x80                         ? Kind::kBeyond
               : c >= 'a' && c <= 'z'            ? Kind::kSmall
               : c >= 'A' && c <= 'Z'            ? Kind::kCapital
               : c >= '0' && c <= '9'            ? Kind::kDigit
               : c == '\n' || c == '\r'          ? Kind::kLineEnd
               : c == ' ' || (c >= 9 && c <= 12) ? Kind::kSpace
                                                 : Kind::kOther;
  }
  return kinds;
}
constexpr std::array<Kind, 256> kKinds = kinds();

constexpr bool is_letter(Kind kind) { return kind == Kind::kSmall || kind == Kind::kCapital; }
constexpr bool is_space(Kind kind) { return kind == Kind::kSpace || kind == Kind::kLineEnd; }

/// Behind the end of the text there is a kind of its own: it is none of those that runs consist of.
constexpr auto kEnd = static_cast<Kind>(0xFF);

struct Text {
  std::string_view text;

  [[nodiscard]] Kind kind(std::size_t at) const noexcept {
    return at < text.size() ? kKinds[static_cast<unsigned char>(text[at])] : kEnd;
  }
  template <class Is>
  [[nodiscard]] std::size_t skip(std::size_t at, Is is) const noexcept {
    while (is(kind(at))) {
      ++at;
    }
    return at;
  }
};

bool take(std::string_view& text, std::string_view part) {
  const bool found = text.starts_with(part);
  text.remove_prefix(found ? part.size() : 0);
  return found;
}

constexpr std::string_view kContractions = "'s|'t|'re|'ve|'m|'ll|'d";
constexpr std::string_view kLead = R"([^\r\n\p{L}\p{N}]?)";
constexpr std::string_view kCapitals = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])";
constexpr std::string_view kSmalls = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";

/// How many bytes from `at` on are a contraction. `beyond`: a character beyond ASCII may make one.
std::size_t contraction(const Text& text, std::size_t at, bool fold, bool& beyond) noexcept {
  if (at >= text.text.size() || text.text[at] != '\'') {
    return 0;
  }
  std::array<char, 2> next{};
  for (std::size_t i = 0; i < next.size() && at + 1 + i < text.text.size(); ++i) {
    const Kind kind = text.kind(at + 1 + i);
    beyond = beyond || (fold && kind == Kind::kBeyond);
    const char c = text.text[at + 1 + i];
    next[i] = fold && kind == Kind::kCapital ? static_cast<char>(c - 'A' + 'a') : c;
  }
  if (next[0] == 's' || next[0] == 't' || next[0] == 'm' || next[0] == 'd') {
    return 2;
  }
  const bool two = (next[0] == 'r' && next[1] == 'e') || (next[0] == 'v' && next[1] == 'e') ||
                   (next[0] == 'l' && next[1] == 'l');
  return two ? 3 : 0;
}

// Alternatives of the pattern. Each gives the end of its match at `at`; `at` itself where a
// character beyond this class decides; nothing where the alternative does not begin there.
using End = std::optional<std::size_t>;

/// At most that many digits; 0: any number, with a space before them.
End digits_end(const Text& text, std::size_t at, std::size_t most_digits) {
  const bool spaced = text.text[at] == ' ' && most_digits == 0;
  const std::size_t digits = at + (spaced ? 1 : 0);
  if (text.kind(digits) != Kind::kDigit) {
    return std::nullopt;
  }
  std::size_t end = digits;
  while (text.kind(end) == Kind::kDigit && (most_digits == 0 || end - digits < most_digits)) {
    ++end;
  }
  const bool full = most_digits > 0 && end - digits == most_digits;
  return !full && text.kind(end) == Kind::kBeyond ? at : end;
}

/// Other characters, with a space before them and those of `tail` behind.
End others_end(const Text& text, std::size_t at, std::string_view tail) {
  const std::size_t others = at + (text.text[at] == ' ' ? 1 : 0);
  if (text.kind(others) != Kind::kOther) {
    return std::nullopt;
  }
  std::size_t end = text.skip(others, [](Kind kind) { return kind == Kind::kOther; });
  if (text.kind(end) == Kind::kBeyond) {
    return at;
  }
  while (end < text.text.size() && tail.find(text.text[end]) != std::string_view::npos) {
    ++end;
  }
  return end;
}

/// White space: up to its last line end, or all but the character before a word.
std::size_t space_end(const Text& text, std::size_t at, bool line_ends) {
  const std::size_t end = text.skip(at, is_space);
  if (text.kind(end) == Kind::kBeyond) {
    return at;
  }
  if (line_ends) {
    for (std::size_t behind = end; behind > at; --behind) {
      if (text.kind(behind - 1) == Kind::kLineEnd) {
        return behind;
      }
    }
  }
  return end < text.text.size() && end - at > 1 ? end - 1 : end;
}

}  // namespace

std::optional<WordPattern> WordPattern::parse(std::string_view pattern) {
  WordPattern made;
  const auto contractions = [&](std::string_view before, std::string_view behind) {
    std::string_view rest = pattern;
    if (!take(rest, before) || !take(rest, kContractions) || !take(rest, behind)) {
      return false;
    }
    pattern = rest;
    return true;
  };
  made.fold_contractions_ = contractions("(?i:", ")|");
  if (made.fold_contractions_ || contractions("", "|")) {
    made.contractions_ = Contractions::kFirst;
  }

  if (take(pattern, R"( ?\p{L}+|)")) {
    made.lead_ = Lead::kSpace;
  } else if (std::string_view rest = pattern; take(rest, kLead) && take(rest, R"(\p{L}+|)")) {
    pattern = rest;
    made.lead_ = Lead::kAny;
  } else {
    made.lead_ = Lead::kAny;
    made.cased_ = true;
    bool ends = false;
    for (const auto& [capitals, smalls] : {std::pair{"*", "+"}, std::pair{"+", "*"}}) {
      if (!take(pattern, kLead) || !take(pattern, kCapitals) || !take(pattern, capitals) ||
          !take(pattern, kSmalls) || !take(pattern, smalls)) {
        return std::nullopt;
      }
      const bool ended = contractions("(?i:", ")?");
      if (!take(pattern, "|") || (capitals[0] == '+' && ended != ends)) {
        return std::nullopt;
      }
      ends = ended;
    }
    if (ends && made.contractions_ != Contractions::kNone) {
      return std::nullopt;
    }
    if (ends) {
      made.contractions_ = Contractions::kBehindLetters;
      made.fold_contractions_ = true;
    }
  }

  if (take(pattern, R"(\p{N}{1,3}|)")) {
    made.most_digits_ = 3;
  } else if (take(pattern, R"(\p{N}|)") || take(pattern, R"(\p{N}{1}|)")) {
    made.most_digits_ = 1;
  } else if (!take(pattern, R"( ?\p{N}+|)")) {
    return std::nullopt;
  }

  if (!take(pattern, R"( ?[^\s\p{L}\p{N}]+)") && !take(pattern, R"( ?[^\s\p{L}\p{N}\r\n]+)")) {
    return std::nullopt;
  }
  made.tail_ = take(pattern, R"([\r\n]*|)") ? "\r\n" : take(pattern, R"([\r\n/]*|)") ? "\r\n/" : "";
  if (made.tail_.empty() && !take(pattern, "|")) {
    return std::nullopt;
  }
  made.line_ends_ = take(pattern, R"(\s*[\r\n]+|)");
  return pattern == R"(\s+(?!\S)|\s+)" ? std::optional(made) : std::nullopt;
}

std::size_t WordPattern::match(std::string_view subject, std::size_t at) const noexcept {
  const Text text{subject};
  const Kind first = text.kind(at);
  if (first == Kind::kBeyond) {
    return at;
  }
  bool beyond = false;
  if (contractions_ == Contractions::kFirst) {
    if (const std::size_t bytes = contraction(text, at, fold_contractions_, beyond); bytes > 0) {
      return at + bytes;
    }
  }

  // Letters, with what may stand before them.
  const bool leads = lead_ == Lead::kAny
                         ? !is_letter(first) && first != Kind::kDigit && first != Kind::kLineEnd
                         : subject[at] == ' ';
  const std::size_t letters = at + (leads ? 1 : 0);
  const Kind second = text.kind(letters);
  // Behind a lead, any of the alternatives may go on with it.
  if (beyond || second == Kind::kBeyond) {
    return at;
  }
  if (is_letter(second)) {
    std::size_t end = letters;
    if (cased_) {
      end = text.skip(end, [](Kind kind) { return kind == Kind::kCapital; });
      if (text.kind(end) == Kind::kBeyond) {
        return at;
      }
      end = text.skip(end, [](Kind kind) { return kind == Kind::kSmall; });
    } else {
      end = text.skip(end, is_letter);
    }
    if (text.kind(end) == Kind::kBeyond) {
      return at;
    }
    if (contractions_ == Contractions::kBehindLetters) {
      end += contraction(text, end, true, beyond);
    }
    return beyond ? at : end;
  }

  if (const End end = digits_end(text, at, most_digits_)) {
    return *end;
  }
  if (const End end = others_end(text, at, tail_)) {
    return *end;
  }
  return space_end(text, at, line_ends_);
}

}  // namespace tandem
