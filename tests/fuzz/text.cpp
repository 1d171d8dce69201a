// Any bytes as a text, through two byte-level tokenizers: with NFC, and without a normalizer, whose
// ids are the text itself.
#include "actors/storage/file.hpp"
#include "models/io/tokenizer/byte_level.hpp"
#include "models/io/tokenizer/tokenizer.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {
namespace {

Tokenizer seed(const char* name) {
  const auto path = corpus() / "tokenizer" / name;
  return Tokenizer::parse(read_file(path, "fuzz", 1 << 20), path.string());
}

}  // namespace

void read(std::string_view input) {
  static const Tokenizer normalizing = seed("qwen.json");
  static const Tokenizer plain = seed("plain.json");
  (void)normalizing.decode(normalizing.encode(input));
  const auto ids = plain.encode(input);
  expect(is_valid_utf8(input), "a text that is not UTF-8 is refused");
  expect(plain.decode(ids) == input, "a byte-level tokenizer loses nothing");
}

}  // namespace tandem::fuzz
