#include "runtime/system/nonce.hpp"

#include <random>

#include <fmt/format.h>

namespace tandem {
namespace {

constexpr std::size_t kDigits = 16;

}  // namespace

std::string nonce_text(std::uint64_t number) { return fmt::format("{:016x}", number); }

std::string fresh_nonce() {
  std::random_device random;
  return nonce_text(std::uint64_t{random()} << 32 | random());
}

bool is_nonce(std::string_view text) noexcept {
  return text.size() == kDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace tandem
