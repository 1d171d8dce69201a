// models/io/tokenizer/word_cache.hpp — caches the ids of words. Text repeats its words: nine of ten
// are found here.
//
// Invariant: a word and its ids fit into one line of the processor's cache; a longer word, or one
// with more ids, is not kept. The cache grows to kMostWords; then a new word takes the place of
// another one.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

class WordCache {
 public:
  /// Returns the ids of a word, which are valid until the next put(); empty if the word is not in
  /// the cache.
  [[nodiscard]] std::span<const std::int32_t> find(std::string_view word) noexcept {
    if (word.empty() || word.size() > kMostBytes || lines_.empty()) {
      return {};
    }
    const Key key = key_of(word);
    const std::size_t at = hash_of(key) & (lines_.size() - 1);
    for (const std::size_t i : {at, at ^ 1U}) {
      if (lines_[i].key == key) {
        return std::span(lines_[i].ids).first(lines_[i].count);
      }
    }
    return {};
  }

  /// Keeps the ids of a word that find() does not know, if they are few.
  void put(std::string_view word, std::span<const std::int32_t> ids) {
    if (word.empty() || word.size() > kMostBytes || ids.empty() || ids.size() > kMostIds) {
      return;
    }
    if (2 * words_ >= lines_.size() && lines_.size() < kMostWords) {
      grow();
    }
    Line line{.key = key_of(word), .count = static_cast<std::uint32_t>(ids.size())};
    std::ranges::copy(ids, line.ids.begin());
    place(line);
    ++words_;
  }

 private:
  static constexpr std::size_t kMostBytes = 24;
  static constexpr std::size_t kMostIds = 7;
  static constexpr std::size_t kFirstWords = 1 << 10;
  static constexpr std::size_t kMostWords = 1 << 16;

  /// A word as numbers: its first eight bytes, its last eight, the bytes between, and its length.
  /// Two words are equal if their keys are.
  struct Key {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    std::uint64_t middle = 0;
    std::uint64_t bytes = 0;  // 0: no word
    bool operator==(const Key&) const = default;
  };
  struct alignas(64) Line {
    Key key;
    std::uint32_t count = 0;
    std::array<std::int32_t, kMostIds> ids{};
  };

  template <class T>
  static std::uint64_t load(const char* from) noexcept {
    T value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  static Key key_of(std::string_view word) noexcept {
    const std::size_t n = word.size();
    const char* at = word.data();
    Key key{.bytes = n};
    if (n >= 8) {
      key.first = load<std::uint64_t>(at);
      key.last = load<std::uint64_t>(at + n - 8);
      key.middle = n > 16 ? load<std::uint64_t>(at + 8) : 0;
    } else if (n >= 4) {
      key.first = load<std::uint32_t>(at);
      key.last = load<std::uint32_t>(at + n - 4);
    } else {
      key.first = load<std::uint8_t>(at) | load<std::uint8_t>(at + n / 2) << 8U |
                  load<std::uint8_t>(at + n - 1) << 16U;
    }
    return key;
  }
  static std::size_t hash_of(const Key& key) noexcept {
    const auto mix = [](std::uint64_t a, std::uint64_t b) {
      __extension__ using Wide = unsigned __int128;
      const Wide product = static_cast<Wide>(a) * b;
      return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
    };
    constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15U;
    constexpr std::uint64_t kOther = 0xD6E8FEB86659FD93U;
    return mix(mix(key.first ^ kOdd, key.last ^ kOther), (key.middle + key.bytes) ^ kOdd);
  }

  /// Puts a line into the first of its two places, and moves the line that was there to the second.
  void place(const Line& line) noexcept {
    const std::size_t at = hash_of(line.key) & (lines_.size() - 1);
    if (lines_[at].key.bytes != 0) {
      lines_[at ^ 1U] = lines_[at];
    }
    lines_[at] = line;
  }
  void grow() {
    const std::vector<Line> old =
        std::exchange(lines_, std::vector<Line>(lines_.empty() ? kFirstWords : 4 * lines_.size()));
    for (const Line& line : old) {
      if (line.key.bytes != 0) {
        place(line);
      }
    }
  }

  std::vector<Line> lines_;  // a power of two
  std::size_t words_ = 0;    // that were put
};

}  // namespace tandem
