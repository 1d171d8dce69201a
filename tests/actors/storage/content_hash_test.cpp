#include "actors/storage/content_hash.hpp"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace tandem {
namespace {

std::string hash_of(std::string_view text) {
  ContentHasher hasher;
  hasher.add(std::as_bytes(std::span(text)));
  return hasher.result().text();
}

TEST(ContentHash, IsThatOfXxhsum) {
  // The digits of Python's xxhash.xxh3_128, which are those of `xxhsum -H2`.
  EXPECT_EQ(hash_of(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash_of("abc"), "06b05ab6733a618578af5f94892f3950");
  std::string longer(100'000, '\0');
  for (std::size_t i = 0; i < longer.size(); ++i) {
    longer[i] = static_cast<char>(i * 7);
  }
  EXPECT_EQ(hash_of(longer), "4fb78cd2670dad5801271d2740e5fca3");
}

TEST(ContentHash, PiecesMakeTheSameHash) {
  const std::vector<std::byte> bytes(10'000, std::byte{3});
  ContentHasher whole;
  whole.add(bytes);
  ContentHasher pieces;
  pieces.add(std::span(bytes).first(77));
  pieces.reset();
  for (std::size_t at = 0; at < bytes.size(); at += 333) {
    pieces.add(std::span(bytes).subspan(at, std::min<std::size_t>(333, bytes.size() - at)));
  }
  EXPECT_EQ(pieces.result(), whole.result());
}

TEST(ContentHash, ReadsItsOwnTextOnly) {
  const ContentHash hash{.high = 0x0123456789abcdef, .low = 0xf};
  EXPECT_EQ(hash.text(), "0123456789abcdef000000000000000f");
  EXPECT_EQ(ContentHash::parse(hash.text()), hash);
  for (const char* wrong :
       {"", "0123456789abcdef000000000000000", "0123456789abcdef000000000000000ff",
        "0123456789ABCDEF000000000000000f", "0123456789abcdef00000000000000-f",
        "0x23456789abcdef000000000000000f", " 123456789abcdef000000000000000f"}) {
    EXPECT_EQ(ContentHash::parse(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace tandem
