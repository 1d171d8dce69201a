#define PCRE2_CODE_UNIT_WIDTH 8
#include "models/io/tokenizer/pre_tokenizer.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <pcre2.h>
#include <time.h>

#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/utf8.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "tokenizer";
constexpr std::size_t kJitStackFirstBytes = 32u << 10;
constexpr std::size_t kJitStackMostBytes = 64u << 20;
// Steps of a match from one start: a run of ten million blanks needs about twice as many, a runaway
// pattern ends within a second or two. PCRE2 counts them anew for every start, so an ordinary call
// has fewer of them, and a limit of the starts it tries.
constexpr std::uint32_t kMostMatchSteps = 100'000'000;
constexpr std::uint32_t kOrdinaryMatchSteps = 100'000;
constexpr std::size_t kStartsOfCall = 1024;
// Time of the thread that one text may take. Patterns of published files need a hundredth of it.
constexpr double kMostSeconds = 2;
constexpr double kMostSecondsPerByte = 2e-6;
constexpr int kCallsBetweenLooks = 64;
constexpr std::size_t kMostPatternBytes = 16u << 10;

/// \s and \S as White_Space, so that both engines mean the same characters.
std::string with_unicode_white_space(std::string_view pattern) {
  std::string out;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out.push_back(pattern[i]);
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's') {
      out += "\\p{White_Space}";
    } else if (escaped == 'S') {
      out += "\\P{White_Space}";
    } else {
      out.push_back('\\');
      out.push_back(escaped);
    }
  }
  return out;
}

double seconds_of_thread() noexcept {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Where the character behind the one at `at` begins.
std::size_t next_character(std::string_view text, std::size_t at) noexcept {
  do {
    ++at;
  } while (at < text.size() && continues_character(text[at]));
  return at;
}

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct SplitPattern::Code {
  pcre2_code* compiled = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(compiled); }
};

SplitPattern::SplitPattern(std::string pattern, std::string_view file)
    : text_(std::move(pattern)),
      words_(WordPattern::parse(text_)),
      code_(std::make_unique<Code>()) {
  if (text_.size() > kMostPatternBytes) {
    throw user_error(kWhere, "{}: a pattern has {} bytes, the limit is {}; correct the file", file,
                     text_.size(), kMostPatternBytes);
  }
  const std::string translated = with_unicode_white_space(text_);
  int code = 0;
  PCRE2_SIZE offset = 0;
  code_->compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT, &code,
                    &offset, nullptr);
  if (code_->compiled == nullptr) {
    throw user_error(kWhere, "{}: the pattern {} does not compile: {}; correct the file", file,
                     text_.substr(0, 80), pcre2_message(code));
  }
  // Without JIT (a kernel that forbids writable code) matching is three times slower, and the same.
  code_->jit = pcre2_jit_compile(code_->compiled, PCRE2_JIT_COMPLETE) == 0;
}

SplitPattern::~SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;

struct Matcher::Room {
  pcre2_match_data* data = pcre2_match_data_create(16, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackFirstBytes, kJitStackMostBytes, nullptr);
  double end_s = std::numeric_limits<double>::infinity();  // of the thread's time
  int calls = 0;                                           // since the last look at that

  Room() {
    TANDEM_CHECK(data != nullptr && context != nullptr, "memory for matching");
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Room() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }

  /// A match that begins in [from, last], by PCRE2's codes.
  int match(const SplitPattern::Code& code, std::string_view text, std::size_t from,
            std::size_t last, std::uint32_t steps) {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    pcre2_set_match_limit(context, steps);
    pcre2_set_offset_limit(context, last);
    int found = code.jit ? pcre2_jit_match(code.compiled, subject, text.size(), from,
                                           PCRE2_NO_UTF_CHECK, data, context)
                         : PCRE2_ERROR_JIT_STACKLIMIT;
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(code.compiled, subject, text.size(), from,
                          PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
    }
    return found;
  }
  [[nodiscard]] bool is_late() {
    calls = 0;
    return seconds_of_thread() > end_s;
  }
};

Matcher::Matcher() : room_(std::make_unique<Room>()) {}
Matcher::~Matcher() = default;

void Matcher::start_text(std::size_t bytes) {
  room_->end_s =
      seconds_of_thread() + kMostSeconds + kMostSecondsPerByte * static_cast<double>(bytes);
}

bool Matcher::find(const SplitPattern& pattern, std::string_view text, std::size_t from,
                   std::size_t& begin, std::size_t& end) {
  if (pattern.words_ && from < text.size()) {
    end = pattern.words_->match(text, from);
    if (end > from) {
      begin = from;
      return true;
    }
  }
  const auto refuse = [&](std::string_view reason) {
    return user_error(kWhere,
                      "the pattern {} fails on a text of {} bytes: {}; shorten the text or correct "
                      "tokenizer.json",
                      pattern.text_.substr(0, 80), text.size(), reason);
  };
  const SplitPattern::Code& code = *pattern.code_;
  bool each_start = false;  // after a start that is not ordinary
  for (std::size_t at = from; at <= text.size();) {
    if (++room_->calls >= (each_start ? 1 : kCallsBetweenLooks) && room_->is_late()) {
      throw refuse("it takes too long");
    }
    const std::size_t last = each_start ? at : std::min(at + kStartsOfCall, text.size());
    const int found =
        room_->match(code, text, at, last, each_start ? kMostMatchSteps : kOrdinaryMatchSteps);
    if (found == PCRE2_ERROR_NOMATCH) {
      at = next_character(text, last);
      each_start = false;
      continue;
    }
    if (found == PCRE2_ERROR_MATCHLIMIT && !each_start) {
      each_start = true;
      continue;
    }
    if (found < 0) {
      throw refuse(pcre2_message(found));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(room_->data);
    begin = range[0];
    end = range[1];
    if (begin < from) {  // \K in a lookbehind's group: the same text would match again and again
      throw refuse("a match begins before the place that it was looked for from");
    }
    return true;
  }
  return false;
}

void split(const SplitStep& step, Matcher& matcher, std::vector<std::string_view>& pieces,
           std::vector<std::string_view>& scratch) {
  scratch.clear();
  for (const std::string_view piece : pieces) {
    const std::size_t first = scratch.size();
    bool behind_match = false;
    const auto emit = [&](std::size_t from, std::size_t to, bool found) {
      if (to == from) {
        return;
      }
      const bool match = found != step.invert;
      const bool joins = step.keep == SplitStep::Keep::kWithPrevious && match && !behind_match &&
                         scratch.size() > first;
      if (joins) {
        scratch.back() = {scratch.back().data(), scratch.back().size() + (to - from)};
      } else if (step.keep != SplitStep::Keep::kRemoved || !match) {
        scratch.push_back(piece.substr(from, to - from));
      }
      behind_match = match;
    };
    std::size_t last = 0;
    std::size_t at = 0;
    std::size_t begin = 0;
    std::size_t end = 0;
    while (at < piece.size() && matcher.find(step.pattern, piece, at, begin, end)) {
      if (end <= begin) {  // an empty match cuts nothing; go on behind the next character
        at = next_character(piece, begin);
        continue;
      }
      emit(last, begin, false);
      emit(begin, end, true);
      last = at = end;
    }
    emit(last, piece.size(), false);
  }
  pieces.swap(scratch);
}

std::string_view gpt2_pattern() {
  return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
}

std::string escape_pattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view(R"(\^$.[]|()?*+{}-# )").find(c) != std::string_view::npos) {
      out.push_back('\\');
    }
    out.push_back(c);
  }
  return out;
}

}  // namespace tandem
