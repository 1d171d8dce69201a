// tests/support/damage.hpp — damaged copies of files, for tests that no bytes crash a reader.
#pragma once

#include <random>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "runtime/util/error.hpp"

namespace tandem::test {

/// A few random changes: bits flipped, bytes replaced by ones that mean something, parts cut out or
/// doubled, the end cut off.
inline std::string damaged(const std::string& original, std::mt19937_64& random) {
  std::string text = original;
  constexpr std::string_view kTelling = "{}[]\",:0123456789-eE.\\nul \xFF\x00";
  const int changes = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < changes && !text.empty(); ++i) {
    const std::size_t at = random() % text.size();
    switch (random() % 6) {
      case 0:
        text[at] = static_cast<char>(text[at] ^ (1 << (random() % 8)));
        break;
      case 1:
      case 2:
        text[at] = kTelling[random() % kTelling.size()];
        break;
      case 3:
        text.erase(at, 1 + random() % 8);
        break;
      case 4:
        text.insert(at, text.substr(random() % text.size(), random() % 16));
        break;
      default:
        text.resize(at);
    }
  }
  return text;
}

/// Feeds damaged copies to `read`; at least some must be refused and no other exception may come
/// out.
template <class Read>
void fuzz(const std::string& original, int rounds, Read&& read) {
  std::mt19937_64 random(20240611);
  int refused = 0;
  for (int i = 0; i < rounds; ++i) {
    const std::string text = damaged(original, random);
    try {
      read(text);
    } catch (const Error& error) {
      ++refused;
      ASSERT_EQ(error.code(), ExitCode::kUserInput) << error.what();
    }
  }
  EXPECT_GT(refused, rounds / 10);
}

}  // namespace tandem::test
