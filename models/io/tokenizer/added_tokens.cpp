#include "models/io/tokenizer/added_tokens.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <utf8proc.h>

#include "models/io/tokenizer/byte_level.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/utf8.hpp"

namespace tandem {
namespace {

/// \w of Unicode: letters, marks, decimal digits, letter numbers, connectors, joiners.
bool is_word_character(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D;
  }
}

std::size_t start_of_last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && continues_character(text[at])) {
    --at;
  }
  return at;
}

bool ends_with_word(std::string_view text) {
  std::size_t at = text.empty() ? 0 : start_of_last_character(text);
  return !text.empty() && is_word_character(next_code_point(text, at));
}

bool starts_with_word(std::string_view text) {
  std::size_t at = 0;
  return !text.empty() && is_word_character(next_code_point(text, at));
}

std::size_t begin_of_trailing_space(std::string_view text) {
  while (!text.empty()) {
    const std::size_t start = start_of_last_character(text);
    std::size_t at = start;
    if (!is_white_space(next_code_point(text, at))) {
      break;
    }
    text = text.substr(0, start);
  }
  return text.size();
}

std::size_t length_of_leading_space(std::string_view text) {
  std::size_t length = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (!is_white_space(next_code_point(text, at))) {
      break;
    }
    length = at;
  }
  return length;
}

}  // namespace

void AddedTokenMatcher::add(AddedToken token) {
  TANDEM_CHECK(!token.content.empty(), "an added token has text");
  tokens_.push_back(std::move(token));
}

void AddedTokenMatcher::remove(std::int32_t id) {
  std::erase_if(tokens_, [id](const AddedToken& token) { return token.id == id; });
}

void AddedTokenMatcher::finish() {
  std::vector<std::size_t> order(tokens_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    const int compared = tokens_[a].content.compare(tokens_[b].content);
    return compared != 0 ? compared < 0 : a < b;
  });
  std::vector<AddedToken> sorted;
  for (const std::size_t i : order) {
    if (!sorted.empty() && sorted.back().content == tokens_[i].content) {
      sorted.pop_back();
    }
    sorted.push_back(std::move(tokens_[i]));
  }
  tokens_ = std::move(sorted);
  std::vector<std::uint32_t> open;  // each begins with the one before it
  for (std::uint32_t i = 0; i < tokens_.size(); ++i) {
    while (!open.empty() && !tokens_[i].content.starts_with(tokens_[open.back()].content)) {
      open.pop_back();
    }
    shorter_.push_back(open.empty() ? i : open.back());
    open.push_back(i);
    begins_[static_cast<unsigned char>(tokens_[i].content.front())] = true;
  }
  if (std::ranges::count(begins_, true) == 1) {
    only_begin_ = tokens_.front().content.front();
  }
}

const AddedToken* AddedTokenMatcher::match_at(std::string_view text,
                                              std::size_t at) const noexcept {
  if (!begins_[static_cast<unsigned char>(text[at])]) {
    return nullptr;
  }
  // Every token that the rest begins with is a beginning of the last token that is not behind the
  // rest in order.
  const std::string_view rest = text.substr(at);
  const auto behind = std::ranges::upper_bound(
      tokens_, rest, {}, [](const AddedToken& token) { return std::string_view(token.content); });
  if (behind == tokens_.begin()) {
    return nullptr;
  }
  auto i = static_cast<std::uint32_t>(behind - tokens_.begin() - 1);
  const std::string_view nearest = tokens_[i].content;
  const auto common =
      static_cast<std::size_t>(std::ranges::mismatch(nearest, rest).in1 - nearest.begin());
  while (tokens_[i].content.size() > common) {
    if (shorter_[i] == i) {
      return nullptr;
    }
    i = shorter_[i];
  }
  return &tokens_[i];
}

void AddedTokenMatcher::split(std::string_view text, std::vector<Part>& parts) const {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size() && !tokens_.empty();) {
    if (only_begin_) {
      at = text.find(*only_begin_, at);
      if (at == std::string_view::npos) {
        break;
      }
    }
    const AddedToken* token = match_at(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at;
    std::size_t end = at + token->content.size();
    at = end;
    if (token->single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) {
      continue;
    }
    if (token->lstrip) {
      const std::string_view between = text.substr(done, begin > done ? begin - done : 0);
      begin = std::min(done + begin_of_trailing_space(between), end);
    }
    if (token->rstrip) {
      end += length_of_leading_space(text.substr(end));
    }
    if (begin > done) {
      parts.push_back({text.substr(done, begin - done), -1});
    }
    parts.push_back({text.substr(begin, end - begin), token->id});
    // The next token is looked for behind this one's content, not behind the space that it took
    // along: one that begins with a space is found there.
    done = end;
  }
  if (done < text.size()) {
    parts.push_back({text.substr(done), -1});
  }
}

}  // namespace tandem
