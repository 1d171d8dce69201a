// Adapters as a user trains, saves, merges and continues with them; what is refused.
#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"
#include "tests/support/python.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// PEFT loads the adapters beside their base without a warning, merges them, and gives the logits
/// of the model that was merged here.
constexpr std::string_view kPeft = R"(
import sys, warnings, logging
import torch
from transformers import AutoModelForCausalLM
from peft import PeftModel
warnings.simplefilter("error", UserWarning)
base, adapter, merged = sys.argv[1:]
complaints = []
class Listen(logging.Handler):
    def emit(self, record): complaints.append(record.getMessage())
logging.getLogger("peft").addHandler(Listen(logging.WARNING))
model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
peft = PeftModel.from_pretrained(model, adapter)
with_b = [name for name, p in peft.named_parameters() if "lora_B" in name and p.abs().sum() > 0]
assert with_b, "no adapter has moved"
ids = torch.arange(3, 40).view(1, -1)
ours = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
difference = (peft.merge_and_unload()(ids).logits - ours(ids).logits).abs().max().item()
print("adapters", len(with_b), "difference", difference, "complaints", complaints)
sys.exit(0 if difference <= 1e-5 and not complaints else 1)
)";

class Lora : public TrainerTest {
 protected:
  [[nodiscard]] std::string flags(const std::string& output, int steps,
                                  const std::string& more) const {
    return fmt::format(
        "--output_dir '{}' --batch_size 2 --max_length 48 --steps {} --no-samples "
        "--no-tensorboard --progress lines --lr 1e-2 --warmup 0 {}",
        path(output), steps, more);
  }
  [[nodiscard]] Finished on_model(const std::string& model, const std::string& output, int steps,
                                  const std::string& more) const {
    return train(fmt::format("--model_name '{}' --dataset_name '{}/instructions.json' {}", model,
                             kDemo, flags(output, steps, more)));
  }
  [[nodiscard]] Finished tandem(const std::string& command) const {
    return shell(fmt::format("'{}/tandem' {}", test::bin_dir(), command));
  }
  /// Returns the logits of a few tokens, by the model or the run in that folder.
  [[nodiscard]] std::vector<double> logits(const std::string& folder) const {
    const Finished done =
        shell(fmt::format("echo '[3, 14, 15, 92, 65]' | '{}/tandem' logits "
                          "--model_name '{}'",
                          test::bin_dir(), path(folder)));
    EXPECT_EQ(done.code, 0) << done.err;
    simdjson::dom::parser parser;
    std::vector<double> all;
    for (const simdjson::dom::element row : parser.parse(done.out).get_array()) {
      for (const double logit : row.get_array()) {
        all.push_back(logit);
      }
    }
    return all;
  }
  static double farthest(const std::vector<double>& one, const std::vector<double>& other) {
    EXPECT_EQ(one.size(), other.size());
    double most = 0;
    for (std::size_t i = 0; i < std::min(one.size(), other.size()); ++i) {
      most = std::max(most, std::abs(one[i] - other[i]));
    }
    return most;
  }
  void expect_peft_agrees(const std::string& model, const std::string& run,
                          const std::string& merged) const {
    const Finished peft =
        shell(fmt::format("'{}' '{}' '{}' '{}' '{}'", kPython, write("compare_peft.py", kPeft),
                          model, path(run + "/adapter"), path(merged)));
    EXPECT_EQ(peft.code, 0) << peft.out << peft.err;
  }
  static void expect_refused(const Finished& done, const std::string& part) {
    EXPECT_EQ(done.code, 2) << done.out << done.err;
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
    EXPECT_THAT(done.err, HasSubstr(part));
  }
};

TEST_F(Lora, AdaptersAreTrainedSavedMergedAndContinuedWith) {
  const std::string model = random_model();
  const std::string lora = "--lora_r 4 --lora_alpha 8 --lora_targets all-linear ";
  const Finished done = on_model(model, "run", 6, lora);
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("adapters of rank 4, scale 2"));
  EXPECT_FALSE(fs::exists(folder_ / "run/model"));
  ASSERT_TRUE(fs::exists(folder_ / "run/adapter/adapter_model.safetensors"));
  EXPECT_THAT(content_of(folder_ / "run/adapter/adapter_config.json"),
              HasSubstr(fmt::format("\"base_model_name_or_path\": \"{}\"", model)));

  const Finished merged = tandem(
      fmt::format("merge '{}' --into '{}' --output '{}'", path("run"), model, path("merged")));
  ASSERT_EQ(merged.code, 0) << merged.err;
  // The adapters beside their base compute what the model of both does, and not what the base does.
  const std::vector<double> with = logits("run");
  EXPECT_LE(farthest(with, logits("merged")), 1e-4);
  EXPECT_GT(farthest(with, logits("model")), 0.1);
  expect_refused(tandem(fmt::format("merge '{}' --into '{}' --output '{}'", path("run/adapter"),
                                    model, path("merged"))),
                 "choose a new one");

  // They go on from what was saved: the same first loss as the merged model has.
  ASSERT_EQ(on_model(model, "on", 2, fmt::format("--lora_from '{}'", path("run/adapter"))).code, 0);
  ASSERT_EQ(on_model(path("merged"), "base", 2, lora).code, 0);
  EXPECT_NEAR(std::stod(column("on", "loss").front()), std::stod(column("base", "loss").front()),
              1e-5);
  if (!test::python_has("peft")) {
    GTEST_SKIP() << "no Python with peft in .venv; ./tandem test installs it";
  }
  expect_peft_agrees(model, "run", "merged");
  // The embedding, which is the head, too, saved whole; scaled otherwise.
  ASSERT_EQ(
      on_model(model, "whole", 4,
               "--lora_r 3 --lora_rslora --lora_targets o_proj --modules_to_save embed_tokens")
          .code,
      0);
  ASSERT_EQ(tandem(fmt::format("merge '{}' --output '{}'", path("whole"), path("both"))).code, 0);
  expect_peft_agrees(model, "whole", "both");
}

TEST_F(Lora, RunsAreTheSameOnTwoRanksAndAfterResuming) {
  const std::string more =
      "--lora_r 4 --lora_targets q_proj,v_proj,down_proj --lora_dropout 0.1 --lora_rslora "
      "--modules_to_save embed_tokens --stage 3 ";
  const auto adapters = [&](const std::string& run) {
    return content_of(folder_ / run / "adapter/adapter_model.safetensors");
  };
  const std::string alone = more + "--gradient_accumulation_steps 2 ";
  ASSERT_EQ(train(flags("one", 8, alone)).code, 0);
  const Finished two = shell(fmt::format("'{}/tandem' launch -n 2 -- '{}' {}", test::bin_dir(),
                                         kTrainer, flags("two", 8, more)));
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(column("two", "loss"), column("one", "loss"));
  EXPECT_EQ(adapters("two"), adapters("one"));
  ASSERT_EQ(train(flags("resumed", 8, alone + "--save_every 4 --bench_steps 4")).code, 0);
  ASSERT_EQ(train(flags("stopped", 4, alone + "--lr_scheduler constant --save_every 4")).code, 0);
  ASSERT_EQ(train(flags("straight", 8, alone + "--lr_scheduler constant")).code, 0);
  const Finished resumed = shell(fmt::format(
      "'{}/tandem' launch -n 2 -- '{}' {}", test::bin_dir(), kTrainer,
      flags("stopped", 8, more + "--lr_scheduler constant --save_every 4 --resume auto")));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(column("stopped", "loss"), column("straight", "loss"));
  EXPECT_EQ(adapters("stopped"), adapters("straight"));
}

TEST_F(Lora, WhatCannotBeTrainedIsRefused) {
  const auto refused = [&](const std::string& more, const std::string& part) {
    expect_refused(train(flags("refused", 1, more)), part);
  };
  refused("--lora_r 4 --lora_targets q_prj", "did you mean \"q_proj\"?");
  refused("--lora_r 4 --lora_targets lm_head", "There are");
  refused("--lora_r 0 --lora_targets q_proj", "--lora_r");
  refused("--lora_r -3", "--lora_r");
  refused("--lora_r 4 --lora_alpha 0", "alpha");
  refused("--lora_r 4 --lora_dropout 1", "dropout");
  refused("--lora_alpha 4", "add --lora_r");
  refused("--lora_r 4 --freeze embed", "contradict");
  refused("--lora_r 4 --modules_to_save embed_token", "embed_tokens");
  refused("--lora_r 4 --lora_targets q_proj --modules_to_save q_proj", "do one of them");
  refused("--lora_from nowhere", "adapter_config.json");
  refused("--freeze 'nothing like it'", "freezes none");
  refused("--freeze .", "freezes all");
  refused("--freeze '('", "does not compile");
}

TEST_F(Lora, WhatIsFrozenKeepsItsBytes) {
  const std::string model = random_model();
  ASSERT_EQ(
      on_model(model, "run", 3, "--freeze 'embed_tokens|layers\\.0\\.|k_proj|up_proj|q_norm'").code,
      0);
  const std::string script = write("same.py", R"(
import re, sys
from safetensors.numpy import load_file
before, after = (load_file(f + "/model.safetensors") for f in sys.argv[1:])
for name in before:
    same = (before[name] == after[name]).all()
    frozen = re.search(r"embed_tokens|layers\.0\.|k_proj|up_proj|q_norm", name) is not None
    assert same == frozen, name
)");
  if (!test::python_has("safetensors")) {
    GTEST_SKIP() << "no Python with safetensors in .venv; ./tandem test installs it";
  }
  const Finished same =
      shell(fmt::format("'{}' '{}' '{}' '{}'", kPython, script, model, path("run/model")));
  EXPECT_EQ(same.code, 0) << same.err;
}

TEST_F(Lora, AdaptersOfOthersAreReadOrRefusedByName) {
  const std::string model = random_model();
  ASSERT_EQ(on_model(model, "run", 1, "--lora_r 2").code, 0);
  const std::string config = content_of(folder_ / "run/adapter/adapter_config.json");
  const auto merge_with = [&](const std::string& from, const std::string& to) {
    std::string changed = config;
    changed.replace(changed.find(from), from.size(), to);
    write("run/adapter/adapter_config.json", changed);
    return tandem(
        fmt::format("merge '{}' --into '{}' --output '{}'", path("run"), model, path("new")));
  };
  const auto refused = [&](const std::string& from, const std::string& to,
                           const std::string& part) {
    expect_refused(merge_with(from, to), part);
    EXPECT_FALSE(fs::exists(folder_ / "new"));
  };
  refused("\"use_dora\": false", "\"use_dora\": true", "use_dora");
  refused("\"LORA\"", "\"IA3\"", "IA3");
  refused("\"bias\": \"none\"", "\"bias\": \"some\"", "bias");
  refused("\"rank_pattern\": {}", "\"rank_pattern\": {\"q_proj\": 8}", "belong together");
  refused("\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\"", "pissa");
  refused("\"r\": 2", "\"r\": 3", "belong together");
  refused("\"exclude_modules\": null", "\"exclude_modules\": [\"q_proj\"]", "exclude_modules");
  refused("\"layers_to_transform\": null", "\"layers_to_transform\": [77]", "layers_to_transform");
  EXPECT_EQ(merge_with("\"use_dora\": false", "\"use_dora\": null").code, 0);
}

/// PEFT gives modules that target_modules names and the file lacks what init_lora_weights says: a
/// B of zero, or random values.
TEST_F(Lora, ModulesThatTheFileLacksAreTheBasesOrRefused) {
  const std::string model = random_model();
  ASSERT_EQ(on_model(model, "run", 1, "--lora_r 2 --lora_targets q_proj").code, 0);
  const std::string config = content_of(folder_ / "run/adapter/adapter_config.json");
  const auto with = [&](const std::string& targets, const std::string& init) {
    std::string changed = config;
    const auto put = [&](const std::string& from, const std::string& to) {
      ASSERT_NE(changed.find(from), std::string::npos) << changed;
      changed.replace(changed.find(from), from.size(), to);
    };
    put("[\n    \"q_proj\"\n  ]", targets);
    put("\"init_lora_weights\": true", "\"init_lora_weights\": " + init);
    write("run/adapter/adapter_config.json", changed);
  };
  const auto merge = [&](const std::string& output) {
    return tandem(
        fmt::format("merge '{}' --into '{}' --output '{}'", path("run"), model, path(output)));
  };
  const auto logits = [&] {
    return shell(fmt::format("echo '[3, 5, 8]' | '{}/tandem' logits --model_name '{}'",
                             test::bin_dir(), path("run/adapter")));
  };
  with("[\"q_proj\"]", "true");
  const std::string alone = logits().out;
  EXPECT_EQ(merge("alone").err, "");
  for (const auto& [targets, init] : {std::pair{"[\"q_proj\", \"o_proj\"]", "true"},
                                      {"\"all-linear\"", "\"gaussian\""},
                                      {"\".*[.]o_proj|.*[.]q_proj\"", "\"eva\""}}) {
    SCOPED_TRACE(targets);
    with(targets, init);
    for (const Finished& done : {merge(init), logits()}) {
      EXPECT_EQ(done.code, 0) << done.err;
      EXPECT_THAT(done.err, HasSubstr("has no LoRA of model.layers.0."));
      EXPECT_THAT(done.err, HasSubstr("the base model's weights stand there"));
    }
    EXPECT_EQ(logits().out, alone);
    EXPECT_TRUE(content_of(folder_ / init / "model.safetensors") ==
                content_of(folder_ / "alone/model.safetensors"));
    with(targets, "false");
    expect_refused(merge("new"), "random values");
    expect_refused(logits(), "random values");
  }
  EXPECT_FALSE(fs::exists(folder_ / "new"));
  with("[\"q_proj\"]", "false");
  EXPECT_EQ(merge("drawn").code, 0) << "the file has all that is named";
  EXPECT_EQ(logits().out, alone);
}

TEST_F(Lora, ThePlanCountsWhatLearns) {
  const auto bytes = [&](const std::string& more) {
    const Finished plan = tandem(
        fmt::format("plan --model_name '{}/config.json' --batch_size 2 --max_length 48 --json "
                    "--gpu_memory_gb 0 --device cpu {}",
                    kDemo, more));
    EXPECT_TRUE(plan.code == 0 || plan.code == 3) << plan.err;
    simdjson::dom::parser parser;
    const simdjson::dom::element json = parser.parse(plan.out);
    return std::int64_t(json["rank"]["host"]["moments"]);
  };
  EXPECT_LT(10 * bytes("--lora_r 4"), bytes(""));
}

}  // namespace
}  // namespace tandem
