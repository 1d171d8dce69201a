#include "actors/storage/content_hash.hpp"

#include <charconv>
#include <new>

#include <fmt/format.h>
#include <xxhash.h>
// The library's functions for AVX2 and AVX-512, chosen at run time: four times as fast in the
// caches.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

namespace tandem {
namespace {

constexpr std::size_t kDigits = 16;  // of each half

std::optional<std::uint64_t> half_of(std::string_view digits) noexcept {
  if (digits.find_first_not_of("0123456789abcdef") != std::string_view::npos) {
    return std::nullopt;
  }
  std::uint64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return value;
}

}  // namespace

std::string ContentHash::text() const { return fmt::format("{:016x}{:016x}", high, low); }

std::optional<ContentHash> ContentHash::parse(std::string_view text) noexcept {
  if (text.size() != 2 * kDigits) {
    return std::nullopt;
  }
  const auto high = half_of(text.substr(0, kDigits));
  const auto low = half_of(text.substr(kDigits));
  return high && low ? std::optional(ContentHash{*high, *low}) : std::nullopt;
}

void ContentHasher::Free::operator()(XXH3_state_s* state) const noexcept { XXH3_freeState(state); }

ContentHasher::ContentHasher() : state_(XXH3_createState()) {
  if (state_ == nullptr) {
    throw std::bad_alloc();
  }
  reset();
}

void ContentHasher::add(std::span<const std::byte> bytes) noexcept {
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

ContentHash ContentHasher::result() const noexcept {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return {.high = hash.high64, .low = hash.low64};
}

void ContentHasher::reset() noexcept { XXH3_128bits_reset(state_.get()); }

}  // namespace tandem
