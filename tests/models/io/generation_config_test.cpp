// generation_config.json is copied as it is, unless the model has learnt an end that it lacks.
#include "models/io/generation_config.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "models/io/folder_members.hpp"
#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

using Ids = std::vector<std::int64_t>;

struct Folders {
  Folders() {
    test::fs::create_directory(from);
    test::fs::create_directory(to);
  }
  [[nodiscard]] std::string saved() const { return test::get(to / "generation_config.json"); }
  [[nodiscard]] bool is_saved() const { return test::fs::exists(to / "generation_config.json"); }

  test::TempDir dir;
  test::fs::path from = dir / "from";
  test::fs::path to = dir / "to";
};

TEST(GenerationConfig, IsCopiedWhereItHasTheEnd) {
  const Folders folders;
  const std::string text = "{ \"temperature\": 0.60,\n \"eos_token_id\": [7, 5]}";
  test::put(folders.from / "generation_config.json", text);
  EXPECT_EQ(generation_end_tokens(folders.from), (Ids{7, 5}));
  for (const std::optional<std::int32_t> end : {std::optional<std::int32_t>(5), {}}) {
    save_generation_config(folders.from, folders.to, {}, end);
    EXPECT_EQ(folders.saved(), text);
  }
}

TEST(GenerationConfig, AnEndThatWasLearntIsAdded) {
  const Folders folders;
  test::put(folders.from / "generation_config.json",
            R"({"temperature": 0.6, "eos_token_id": 7, "stop_strings": ["a\"b", null]})");
  save_generation_config(folders.from, folders.to, Ids{3}, 9);
  EXPECT_EQ(generation_end_tokens(folders.to), (Ids{7, 9}));
  EXPECT_NE(folders.saved().find(R"("stop_strings": ["a\"b",null])"), std::string::npos)
      << folders.saved();
  EXPECT_NE(folders.saved().find("0.6"), std::string::npos);
}

TEST(GenerationConfig, TheModelsConfigDecidesWhereThereIsNone) {
  const Folders folders;
  EXPECT_EQ(generation_end_tokens(folders.from), Ids{});
  save_generation_config(folders.from, folders.to, Ids{3}, 3);
  save_generation_config(folders.from, folders.to, Ids{3}, {});
  EXPECT_FALSE(folders.is_saved());
  save_generation_config(folders.from, folders.to, Ids{3}, 9);
  EXPECT_EQ(generation_end_tokens(folders.to), (Ids{3, 9}));
  test::put(folders.from / "generation_config.json", R"({"do_sample": true})");
  save_generation_config(folders.from, folders.to, Ids{3}, 9);
  EXPECT_EQ(generation_end_tokens(folders.to), (Ids{3, 9}));
}

TEST(GenerationConfig, AnIdOfNoTokenEndsNothing) {
  const Folders folders;
  test::put(folders.from / "generation_config.json", R"({"eos_token_id": [-1, 7]})");
  EXPECT_EQ(generation_end_tokens(folders.from), Ids{7});
}

TEST(GenerationConfig, AMalformedFileIsOneLine) {
  const Folders folders;
  for (const char* text : {"[", R"({"eos_token_id": "end"})", R"({"eos_token_id": 1.5})"}) {
    test::put(folders.from / "generation_config.json", text);
    test::expect_error([&] { (void)generation_end_tokens(folders.from); },
                       {"generation_config.json", "correct the file or remove it"});
  }
}

TEST(GenerationConfig, ANoteNamesWhatTheFlagsDecide) {
  const Folders folders;
  EXPECT_TRUE(generation_config_notes(folders.from).empty());
  test::put(folders.from / "generation_config.json",
            R"({"do_sample": false, "temperature": 1.0, "top_p": null, "eos_token_id": 1})");
  EXPECT_TRUE(generation_config_notes(folders.from).empty());
  test::put(folders.from / "generation_config.json",
            R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "stranger": 1})");
  const std::vector<std::string> notes = generation_config_notes(folders.from);
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_NE(notes[0].find("asks Transformers for do_sample true, temperature 0.6, top_k 20"),
            std::string::npos)
      << notes[0];
  EXPECT_NE(notes[1].find("nothing reads: stranger"), std::string::npos) << notes[1];
}

TEST(TokenizerConfig, ANoteNamesMembersOfNoList) {
  const Folders folders;
  test::put(folders.from / "tokenizer_config.json",
            R"({"image_token": "<i>", "padding_side": "left", "stranger": 1, "other": null})");
  const std::vector<std::string> notes = tokenizer_config_notes(folders.from);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("nothing reads: stranger, other"), std::string::npos) << notes[0];
}

}  // namespace
}  // namespace tandem
