// tokenizer.json: what is accepted encodes a text of many kinds, and decodes it.
#include "models/io/tokenizer/tokenizer.hpp"

#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  const Tokenizer tokenizer = Tokenizer::parse(input, "tokenizer.json");
  const auto ids = tokenizer.encode(
      "Hello w\u00f6rld 123 <s>\n\n  aab  don't \t\u65e5\u672c\u8a9e a\u0301\u0323 x", true);
  for (const std::int32_t id : ids) {
    expect(id >= 0 && id < tokenizer.vocab_size(), "ids are of the vocabulary");
  }
  (void)tokenizer.decode(ids);
  (void)tokenizer.decode(ids, true);
}

}  // namespace tandem::fuzz
