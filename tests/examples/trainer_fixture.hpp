// tests/examples/trainer_fixture.hpp — runs the real programs as a user does: a command line,
// files, an exit code.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/process/paths.hpp"
#include "tests/support/python.hpp"

namespace tandem {

struct Finished {
  int code = -1;
  std::string out;
  std::string err;
};

inline std::string content_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// Logits of every position, and the greedy continuation of a prompt, by Transformers and by us; of
/// each of the models that are named behind our program.
inline constexpr std::string_view kCompare = R"(
import json, subprocess, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
program, *folders = sys.argv[1:]
prompt = "Which day comes after Monday? Say it, and then name the one before it, please."
def agree(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    def ours(*arguments, given=""):
        done = subprocess.run([program, *arguments, "--model_name", folder], input=given, text=True, capture_output=True, check=True)
        return json.loads(done.stdout)
    ids = tokenizer(prompt)["input_ids"]
    theirs = model(input_ids=torch.tensor([ids])).logits[0].detach()
    difference = (torch.tensor(ours("logits", given=json.dumps(ids))) - theirs).abs().max().item()
    new = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), max_new_tokens=40, do_sample=False)
    new = new[0, len(ids):].tolist()
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    new = new[:-1] if new and new[-1] in ends else new
    made = ours("generate", "--prompt", prompt, "--max_new_tokens", "40", "--ids")
    print(folder, "tokens", len(ids), "difference", difference, "theirs", new, "ours", made)
    return len(ids) > 12 and difference <= 1e-5 and new == made
sys.exit(0 if folders and all([agree(folder) for folder in folders]) else 1)
)";

class TrainerTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(std::filesystem::exists(kTrainer)) << "build the target finetune_zero3 first";
    folder_ = std::filesystem::path(testing::TempDir()) / fmt::format("trainer {}", ::getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }
  std::string write(const std::string& name, std::string_view text) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return path(name);
  }

  /// The shell runs `command`; its output is kept apart.
  [[nodiscard]] Finished shell(const std::string& command) const {
    const std::string line =
        fmt::format("( {} ) >'{}' 2>'{}' </dev/null", command, path(".out"), path(".err"));
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content_of(path(".out")),
            content_of(path(".err"))};
  }
  [[nodiscard]] Finished train(const std::string& flags) const {
    return shell(fmt::format("'{}' {}", kTrainer, flags));
  }

  /// A few demo steps with small batches, without its samples; `flags` follow.
  [[nodiscard]] Finished demo(const std::string& output, const std::string& flags) const {
    return train(fmt::format("--output_dir '{}' --batch_size 4 --progress lines --no-samples {}",
                             path(output), flags));
  }

  /// The raw text of a column of metrics.jsonl, so that equal means equal to the last digit: of the
  /// steps' lines, or of the evaluations'.
  [[nodiscard]] std::vector<std::string> column(const std::string& output,
                                                const std::string& name) const {
    std::vector<std::string> values;
    std::istringstream lines(content_of(folder_ / output / "metrics.jsonl"));
    const bool of_evaluations = name.starts_with("eval_") || name.ends_with("perplexity");
    for (std::string line; std::getline(lines, line);) {
      if ((line.find("\"eval_loss\"") != std::string::npos) != of_evaluations) {
        continue;
      }
      const std::string key = "\"" + name + "\":";
      const std::size_t at = line.find(key);
      if (at == std::string::npos) {
        values.emplace_back("missing");
        continue;
      }
      const std::size_t begin = line.find_first_not_of(' ', at + key.size());
      values.push_back(line.substr(begin, line.find_first_of(",}", begin) - begin));
    }
    return values;
  }

  /// Losses, gradient norms and the model saved at the end, of two runs.
  void expect_same_digits(const std::string& one, const std::string& other) const {
    SCOPED_TRACE(one + " and " + other);
    EXPECT_FALSE(column(one, "loss").empty());
    for (const char* name : {"loss", "grad_norm"}) {
      EXPECT_EQ(column(one, name), column(other, name)) << name;
    }
    EXPECT_TRUE(content_of(folder_ / one / "model/model.safetensors") ==
                content_of(folder_ / other / "model/model.safetensors"));
  }

  [[nodiscard]] static bool has_transformers() { return test::python_has("transformers"); }
  /// Transformers loads each of the models, all of it, and computes what we do.
  void expect_transformers_agrees(const std::vector<std::string>& models) const {
    const Finished compared =
        shell(fmt::format("'{}' '{}' '{}/tandem' '{}'", kPython, write("compare.py", kCompare),
                          test::bin_dir(), fmt::join(models, "' '")));
    EXPECT_EQ(compared.code, 0) << compared.out << compared.err;
  }
  /// A checkpoint of our own: the demo's shape, but for what `shape` says, and tokenizer with
  /// random weights.
  [[nodiscard]] std::string random_model(std::string_view shape = "") const {
    const std::string model = path("model");
    const Finished made = shell(fmt::format(
        "'{}/make_model' --config '{}/config.json' --tokenizer '{}' --seed 1 --output '{}' {}",
        test::bin_dir(), kDemo, kDemo, model, shape));
    EXPECT_EQ(made.code, 0) << made.err;
    return model;
  }

  /// The smallest that trains: steps of a millisecond.
  static constexpr std::string_view kOneLayer =
      "--hidden 16 --layers 1 --heads 2 --kv_heads 1 --head_dim 8 --intermediate 16";
  static inline const std::string kTrainer = test::program_path("finetune_zero3");
  static inline const std::string kDemo = test::source_path("examples/demo");
  static inline const std::string kShared = test::source_path("../shared");
  static inline const std::string kPython = test::kPython;
  std::filesystem::path folder_;
};

}  // namespace tandem
