// `tandem generate`: what is drawn repeats with its seed, several prompts, answers by the model's
// chat template; wrong input is one line.
#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

/// Marks of turns, a tag of Transformers' own, a refusal, and special tokens by name.
constexpr std::string_view kTemplate = R"({{- bos_token }}
{%- for message in messages %}
{%- if message.role == "tool" %}{{ raise_exception("tools are unknown here") }}{% endif %}
[{{ message.role }}] {% generation %}{{ message.content | trim }}{% endgeneration %}
{%- if loop.last %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}
[assistant] {% endif %}
)";

class GenerateCommand : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    model_ = random_model();
  }
  [[nodiscard]] Finished generate(const std::string& flags) const {
    return shell(
        fmt::format("'{}/tandem' generate --model_name '{}' {}", test::bin_dir(), model_, flags));
  }
  /// As ./tandem generate --chat starts it.
  [[nodiscard]] Finished chat(const std::string& flags) const {
    return shell(
        fmt::format("'{}' -I '{}/tools/run_module.py' prepare.chat '{}/tandem' --chat "
                    "--model_name '{}' {}",
                    kPython, test::source_dir(), test::bin_dir(), model_, flags));
  }
  static void expect_refused(const Finished& done, const std::string& part) {
    EXPECT_EQ(done.code, 2) << done.out << done.err;
    EXPECT_TRUE(done.err.starts_with("error: [")) << done.err;
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
    EXPECT_THAT(done.err, HasSubstr(part));
    EXPECT_EQ(done.out, "");
  }

  std::string model_;
};

TEST_F(GenerateCommand, WhatIsDrawnRepeatsWithItsSeed) {
  const std::string drawn = "--prompt 'Name a day.' --max_new_tokens 24 --temperature 1.5 ";
  const Finished first = generate(drawn + "--seed 1");
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_GT(first.out.size(), 8U);
  EXPECT_EQ(generate(drawn + "--seed 1").out, first.out);
  EXPECT_NE(generate(drawn + "--seed 2").out, first.out);
  const std::string greedy = "--prompt 'Name a day.' --max_new_tokens 5 --ids ";
  EXPECT_EQ(generate(greedy + "--seed 1").out, generate(greedy + "--seed 2").out);
  EXPECT_EQ(generate(greedy + "--dtype bf16").code, 0);
}

TEST_F(GenerateCommand, SeveralPromptsAnswerAsEachAlone) {
  const std::string flags = " --max_new_tokens 16 --temperature 1.5 --seed 3";
  const Finished day = generate("--prompt 'Name a day.'" + flags);
  const Finished leaf = generate("--prompt 'Name a leaf.'" + flags);
  const std::string both = "== 1 of 2\n" + day.out + "\n== 2 of 2\n" + leaf.out;
  const std::string text = write("prompts.txt", "Name a day.\n\nName a leaf.\n");
  EXPECT_EQ(generate(fmt::format("--prompts '{}'{}", text, flags)).out, both);
  const std::string marked = write("marked.txt", "\xEF\xBB\xBFName a day.\r\n\r\nName a leaf.\r\n");
  EXPECT_EQ(generate(fmt::format("--prompts '{}'{}", marked, flags)).out, both);
  const std::string json =
      write("prompts.jsonl", "\"Name a day.\"\n{\"prompt\": \"Name a leaf.\"}\n");
  EXPECT_EQ(generate(fmt::format("--prompts '{}'{}", json, flags)).out, both);
  const Finished ids = generate(fmt::format("--ids --prompts '{}'{}", json, flags));
  EXPECT_EQ(std::count(ids.out.begin(), ids.out.end(), '\n'), 2) << ids.out;
}

TEST_F(GenerateCommand, ChatsByTheModelsTemplate) {
  if (!has_transformers()) {
    GTEST_SKIP() << "no Python with transformers in .venv";
  }
  write("model/chat_template.jinja", kTemplate);
  const std::string flags = " --max_new_tokens 16 --temperature 1.5 --seed 3";
  const Finished answer = chat("--prompt ' Name a day.' --system 'Be brief'" + flags);
  ASSERT_EQ(answer.code, 0) << answer.err;
  const std::string rendered =
      write("rendered.jsonl", R"("[system] Be brief[user] Name a day.[assistant] ")");
  EXPECT_EQ(answer.out,
            generate(fmt::format("--as_rendered --prompts '{}'{}", rendered, flags)).out);
  const std::string turns = write("turns.jsonl", R"({"messages": [
      {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."},
      {"role": "user", "content": "Name a day."}]})");
  std::string line = content_of(turns);
  std::erase(line, '\n');
  const Finished two = chat(
      fmt::format("--prompts '{}'{}", write("turns.jsonl", line + "\n\"Name a leaf.\"\n"), flags));
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_THAT(two.out, HasSubstr("== 2 of 2\n"));

  expect_refused(
      chat("--prompts '" +
           write("tool.jsonl", R"({"messages": [{"role": "tool", "content": "x"}]})") + "'"),
      "tools are unknown here");
  expect_refused(chat("--prompts '" + write("bad.jsonl", "\"a\"\n{\"messages\": 3}\n") + "'"),
                 "line 2");
  expect_refused(chat("--prompt a --top_p 2"), "--top_p");
  expect_refused(chat("--prompt a --prompts b"), "exclude each other");
  write("model/chat_template.jinja", "{% for x in %}");
  expect_refused(chat("--prompt a"), "does not compile");
  std::filesystem::remove(folder_ / "model/chat_template.jinja");
  expect_refused(chat("--prompt a"), "has no chat template");
  expect_refused(generate("--chat --prompt a"), "./tandem generate --chat");
}

TEST_F(GenerateCommand, WrongInputIsOneLine) {
  expect_refused(generate("--prompt a --max_new_tokens 100000"), "positions");
  expect_refused(generate("--prompt a --top_p 2"), "--top_p");
  expect_refused(generate("--prompt a --temperatur 1"), "--temperature");
  expect_refused(generate(""), "give --prompt or --prompts");
  expect_refused(generate("--prompts '" + path("none") + "'"), "cannot be read");
  expect_refused(generate("--prompts '" + write("empty.txt", "\n \n") + "'"), "no prompt");
  expect_refused(generate("--prompts '" + write("bad.jsonl", "\"a\"\n3\n") + "'"), "line 2");
  std::ofstream(model_ + "/generation_config.json") << "[";
  expect_refused(generate("--prompt a"), "generation_config.json");
}

}  // namespace
}  // namespace tandem
