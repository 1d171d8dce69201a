#include "models/name_pattern.hpp"

#include <array>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr std::size_t kMostPatternBytes = 4096;
constexpr std::uint32_t kMostMatchSteps = 1'000'000;

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

std::string message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct NamePattern::Parts {
  std::unique_ptr<pcre2_code, Free> code;
  std::unique_ptr<pcre2_match_data, Free> data;
  std::unique_ptr<pcre2_match_context, Free> context;
};

NamePattern::NamePattern(const std::string& text, const Options& options)
    : where_(options.where), what_(options.what), text_(text) {
  if (text.size() > kMostPatternBytes) {
    throw user_error(where_, "{} has {} bytes, the limit is {}; shorten it", what_, text.size(),
                     kMostPatternBytes);
  }
  const std::uint32_t flags = PCRE2_UTF | (options.at_begin ? PCRE2_ANCHORED : 0U);
  int code = 0;
  PCRE2_SIZE offset = 0;
  auto parts = std::make_shared<Parts>();
  parts->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), flags,
                                  &code, &offset, nullptr));
  if (parts->code == nullptr) {
    throw user_error(where_, "{}, \"{}\", does not compile: {} at character {}; correct it", what_,
                     text, message(code), offset);
  }
  parts->data.reset(pcre2_match_data_create_from_pattern(parts->code.get(), nullptr));
  parts->context.reset(pcre2_match_context_create(nullptr));
  TANDEM_CHECK(parts->data != nullptr && parts->context != nullptr, "memory for matching");
  pcre2_set_match_limit(parts->context.get(), kMostMatchSteps);
  parts_ = std::move(parts);
}

bool NamePattern::is_in(std::string_view name) const {
  const int found = pcre2_match(parts_->code.get(), reinterpret_cast<PCRE2_SPTR>(name.data()),
                                name.size(), 0, 0, parts_->data.get(), parts_->context.get());
  if (found < 0 && found != PCRE2_ERROR_NOMATCH) {
    throw user_error(where_, "{}, \"{}\", fails on {}: {}; simplify it", what_, text_, name,
                     message(found));
  }
  return found >= 0;
}

}  // namespace tandem
