// --add_tokens: the saved model has them, in tokenizer, config, embedding and head, and loads in
// Transformers.
#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

class AddTokens : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    cache_ = fmt::format("TANDEM_CACHE='{}' ", path("cache"));
  }
  [[nodiscard]] std::string flags(const std::string& output, const std::string& more) const {
    return fmt::format(
        "--model_name '{}' --dataset_name '{}/instructions.json' --lr 1e-3 --batch_size 2 "
        "--max_length 48 --steps 4 --no-tensorboard --progress lines --output_dir '{}' {}",
        path("model"), kDemo, path(output), more);
  }
  [[nodiscard]] Finished run(const std::string& output, const std::string& more) const {
    return shell(fmt::format("{} '{}' {}", cache_, kTrainer, flags(output, more)));
  }
  [[nodiscard]] std::int64_t vocabulary(const std::string& folder) const {
    simdjson::dom::parser parser;
    return std::int64_t(parser.load(path(folder + "/config.json"))["vocab_size"]);
  }
  [[nodiscard]] std::string tokens(const std::string& folder, const std::string& text) const {
    return shell(fmt::format("echo '\"{}\"' | '{}/tandem' tokenize --model_name '{}'", text,
                             test::bin_dir(), path(folder)))
        .out;
  }

  std::string cache_;
};

TEST_F(AddTokens, GrowTheModelAndLoadInTransformers) {
  (void)random_model();
  const std::string file = write("tokens.txt", "<tool>\n\n<end of tool>\r\n");
  const std::string more = fmt::format("--add_tokens '{}'", file);
  const Finished one = run("one", more + " --gradient_accumulation_steps 2");
  ASSERT_EQ(one.code, 0) << one.err;
  const Finished two = shell(fmt::format("{} '{}/tandem' launch -n 2 -- '{}' {}", cache_,
                                         test::bin_dir(), kTrainer, flags("two", more)));
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(column("two", "loss"), column("one", "loss"));
  EXPECT_EQ(content_of(folder_ / "two/model/model.safetensors"),
            content_of(folder_ / "one/model/model.safetensors"));

  const std::int64_t before = vocabulary("model");
  EXPECT_EQ(vocabulary("one/model") % 64, 0);
  EXPECT_GE(vocabulary("one/model"), before + 2);
  EXPECT_LT(vocabulary("one/model"), before + 2 + 64);
  EXPECT_THAT(tokens("model", "<tool>"), HasSubstr(","));
  EXPECT_EQ(tokens("one/model", "<tool>"), fmt::format("[{}]\n", before));
  EXPECT_EQ(tokens("one/model", "<end of tool>"), fmt::format("[{}]\n", before + 1));
  if (!has_transformers()) {
    GTEST_SKIP() << "no Python with transformers in .venv";
  }
  expect_transformers_agrees({path("one/model")});
  const Finished same = shell(
      fmt::format("'{}' -c 'from transformers import AutoTokenizer; "
                  "t = AutoTokenizer.from_pretrained(\"{}\"); print(t(\"<tool>\")[\"input_ids\"])'",
                  kPython, path("one/model")));
  EXPECT_THAT(same.out, HasSubstr(fmt::format("[{}", before))) << same.err;
}

TEST_F(AddTokens, WhatCannotBeAddedIsRefused) {
  (void)random_model();
  const auto refused = [&](std::string_view text, const std::string& more,
                           const std::string& part) {
    const std::string file = write("tokens.txt", text);
    const Finished done = run("run", fmt::format("--add_tokens '{}' {}", file, more));
    EXPECT_EQ(done.code, 2) << done.out;
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
    EXPECT_THAT(done.err, HasSubstr(part));
  };
  refused("\n", "", "has 0 tokens");
  refused("<a>\n<a>\n", "", "twice");
  refused("\xff\n", "", "no UTF-8");
  refused("<|im_end|>\n", "", "already");
  refused("<a>\n", "--lora_r 2", "without adapters first");
  EXPECT_EQ(run("run", fmt::format("--add_tokens '{}'", path("nowhere"))).code, 2);
}

}  // namespace
}  // namespace tandem
