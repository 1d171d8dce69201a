// New tokens get ids behind tokenizer.json, and none where another file adds tokens to it.
#include "models/grown_vocabulary.hpp"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/io_support.hpp"
#include "tests/support/process/paths.hpp"
#include "tests/support/process/variable.hpp"

namespace tandem {
namespace {

TEST(GrownVocabulary, TokensOfAnotherFileAreInTheWay) {
  const test::TempDir dir;
  const test::Variable cache("TANDEM_CACHE", (dir / "cache").string());
  std::filesystem::copy(test::source_path("examples/demo/tokenizer.json"), dir / "tokenizer.json");
  test::put(dir / "tokenizer_config.json", R"({"tokenizer_class": "TokenizersBackend"})");
  EXPECT_TRUE(std::filesystem::exists(tokenizer_with(dir.path(), {"<new>"}) / "tokenizer.json"));
  test::put(dir / "tokenizer_config.json", R"({"pad_token": "[PAD]"})");
  test::expect_error([&] { (void)tokenizer_with(dir.path(), {"<new>"}); },
                     {"lacks tokens that tokenizer_config.json adds", "save the tokenizer"});
}

TEST(GrownVocabulary, ReadsAFileOfAnyEditor) {
  const test::TempDir dir;
  test::put(dir / "tokens.txt", "\xEF\xBB\xBF<tool>\r\n\r\n<call>\r\n");
  EXPECT_EQ(read_new_tokens(dir / "tokens.txt"), (std::vector<std::string>{"<tool>", "<call>"}));
}

TEST(GrownVocabulary, NeedsAFolderForItsTokenizer) {
  const test::TempDir dir;
  std::filesystem::copy(test::source_path("examples/demo/tokenizer.json"), dir / "tokenizer.json");
  const auto grow = [&] { (void)tokenizer_with(dir.path(), {"<new>"}); };
  {
    const test::Variable cache("TANDEM_CACHE", "/proc/self/nowhere");
    test::expect_error(grow, {"cannot be kept in /proc/self/nowhere/tokenizers", "TANDEM_CACHE"});
  }
  const test::Variable cache("TANDEM_CACHE", std::nullopt);
  const test::Variable all_caches("XDG_CACHE_HOME", std::nullopt);
  const test::Variable home("HOME", std::nullopt);
  test::expect_error(grow, {"neither HOME nor TANDEM_CACHE is set"});
}

}  // namespace
}  // namespace tandem
