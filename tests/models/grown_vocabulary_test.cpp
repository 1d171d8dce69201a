// New tokens get ids behind tokenizer.json, and none where another file adds tokens to it.
#include "models/grown_vocabulary.hpp"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

TEST(GrownVocabulary, TokensOfAnotherFileAreInTheWay) {
  const test::TempDir dir;
  std::filesystem::copy(TANDEM_SOURCE_DIR "/examples/demo/tokenizer.json", dir / "tokenizer.json");
  test::put(dir / "tokenizer_config.json", R"({"tokenizer_class": "TokenizersBackend"})");
  EXPECT_TRUE(std::filesystem::exists(tokenizer_with(dir.path(), {"<new>"}) / "tokenizer.json"));
  test::put(dir / "tokenizer_config.json", R"({"pad_token": "[PAD]"})");
  test::expect_error([&] { (void)tokenizer_with(dir.path(), {"<new>"}); },
                     {"lacks tokens that tokenizer_config.json adds", "save the tokenizer"});
}

}  // namespace
}  // namespace tandem
