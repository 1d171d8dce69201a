// finetune_zero3 as a new user meets it: a model that learns to stop, epochs that decide, what is
// said of the data, flags of Transformers, and the DeepSpeed example's own bits by --recipe.
#include <algorithm>
#include <cmath>

#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Defaults : public TrainerTest {
 protected:
  /// A small model whose tokenizer, as Qwen3's, adds no end token of its own.
  void SetUp() override {
    TrainerTest::SetUp();
    fs::create_directory(path("tokenizer"));
    fs::copy_file(fs::path(kDemo) / "tokenizer_config.json",
                  path("tokenizer/tokenizer_config.json"));
    std::string text = content_of(fs::path(kDemo) / "tokenizer.json");
    const std::string framing = "TemplateProcessing";
    text.replace(text.find(framing), framing.size(), "ByteLevel");
    write("tokenizer/tokenizer.json", text);
    const Finished made = shell(fmt::format(
        "'{0}/make_model' --config '{1}/config.json' --tokenizer '{2}' --seed 1 --output '{3}' "
        "--hidden 64 --layers 2 --heads 2 --kv_heads 1 --head_dim 32 --intermediate 128",
        test::bin_dir(), kDemo, path("tokenizer"), path("source")));
    ASSERT_EQ(made.code, 0) << made.err;
    // Ten records, one without input.
    std::string records;
    for (const char* word :
         {"leaf", "lamp", "moor", "rain", "bread", "north", "seven", "glass", "paper", "river"}) {
      records += fmt::format(R"({}{{"instruction": "Say {}.", "output": "One {}."{}}})",
                             records.empty() ? "" : ",\n", word, word,
                             records.empty() ? "" : R"(, "input": "")");
    }
    write("data.json", "[" + records + "]");
  }

  [[nodiscard]] Finished run(const std::string& output, const std::string& more) const {
    return train(
        fmt::format("--model_name '{}' --dataset_name '{}' --output_dir '{}' --progress "
                    "lines --no-tensorboard {}",
                    path("source"), path("data.json"), path(output), more));
  }
  [[nodiscard]] Finished generate(const std::string& model, const std::string& more) const {
    return shell(fmt::format("'{}/tandem' generate --model_name '{}' --prompt '{}' {}",
                             test::bin_dir(), path(model),
                             "### Instruction:\nSay moor.\n\n### Response:\n", more));
  }
  void expect_refused(const Finished& done, const std::vector<std::string>& parts) const {
    EXPECT_EQ(done.code, 2) << done.out << done.err;
    EXPECT_TRUE(done.err.starts_with("error: [")) << done.err;
    EXPECT_EQ(std::ranges::count(done.err, '\n'), 1) << done.err;
    for (const std::string& part : parts) {
      EXPECT_THAT(done.err, HasSubstr(part));
    }
  }
};

constexpr const char* kShort = "--lr 3e-3 --batch_size 2";

TEST_F(Defaults, AModelLearnsItsAnswersAndToStop) {
  const std::string flags = "--lr 1e-2 --batch_size 5 --num_train_epochs 60";
  ASSERT_EQ(run("stops", flags).code, 0);
  const Finished made = generate("stops", "");  // the run's folder stands for its model
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(made.out, "One moor.\n");
  // Without the end token it says the answer, and goes on.
  ASSERT_EQ(run("goes on", flags + " --append_eos off").code, 0);
  const Finished longer = generate("goes on", "");
  EXPECT_THAT(longer.out, HasSubstr("One moor."));
  EXPECT_GT(longer.out.size(), 2 * made.out.size());
}

TEST_F(Defaults, TheEndTokenThatWasLearntStandsInTheSavedModel) {
  for (const char* name : {"added_tokens.json", "chat_template.jinja", "special_tokens_map.json"}) {
    write(std::string("source/") + name, "{}");
  }
  write("source/generation_config.json", R"({"temperature": 0.7, "eos_token_id": 3})");
  ASSERT_EQ(run("out", std::string(kShort) + " --steps 1").code, 0);
  for (const char* name : {"added_tokens.json", "chat_template.jinja", "special_tokens_map.json"}) {
    EXPECT_EQ(content_of(folder_ / "out/model" / name), "{}") << name;
  }
  const std::string saved = content_of(folder_ / "out/model/generation_config.json");
  EXPECT_THAT(saved, AllOf(HasSubstr("767"), HasSubstr("3"), HasSubstr("0.7")));
  ASSERT_EQ(run("off", std::string(kShort) + " --steps 1 --append_eos off").code, 0);
  EXPECT_EQ(content_of(folder_ / "off/model/generation_config.json"),
            content_of(folder_ / "source/generation_config.json"));
}

TEST_F(Defaults, EpochsDecideAndTheStartSaysSo) {
  const Finished epochs = run("epochs", fmt::format("{} --num_train_epochs 3", kShort));
  ASSERT_EQ(epochs.code, 0) << epochs.err;
  EXPECT_THAT(epochs.out, HasSubstr("15 steps = 3 epochs of 5\n"));
  EXPECT_EQ(column("epochs", "epoch").back(), "3");
  ASSERT_EQ(column("epochs", "loss").size(), 15U);
  // Transformers' linear: the warm-up's only step has the rate 0, and step 16 would have.
  const auto rates = column("epochs", "lr");
  EXPECT_EQ(std::stod(rates[0]), 0);
  for (std::size_t i = 1; i < rates.size(); ++i) {
    EXPECT_NEAR(std::stod(rates[i]), 3e-3 * static_cast<double>(15 - i) / 14, 1e-15) << i;
  }
  const Finished steps = run("steps", fmt::format("{} --max_steps 4", kShort));
  EXPECT_THAT(steps.out, HasSubstr("4 steps = 0.8 epochs of 5\n"));
  EXPECT_EQ(column("steps", "loss").size(), 4U);
  const Finished part = run("part", fmt::format("{} --num_train_epochs 1.5", kShort));
  ASSERT_EQ(part.code, 0) << part.err;
  EXPECT_THAT(part.out, HasSubstr("8 steps = 1.6 epochs of 5\n"));  // 7.5, and what is begun counts
  EXPECT_EQ(column("part", "loss").size(), 8U);
  EXPECT_EQ(run("half", fmt::format("{} --num_train_epochs 0.5", kShort)).code, 0);
  EXPECT_EQ(column("half", "loss").size(), 3U);
  expect_refused(run("none", fmt::format("{} --num_train_epochs 0", kShort)),
                 {"--num_train_epochs"});
  const Finished cut = run("cut", fmt::format("{} --num_train_epochs 3 --bench_steps 7", kShort));
  EXPECT_THAT(cut.out, HasSubstr("7 steps = 1.4 epochs of 5\n"));
  EXPECT_EQ(column("cut", "loss").size(), 7U);
}

TEST_F(Defaults, TheStartSaysWhatIsTrained) {
  const Finished done = run("out", fmt::format("{} --steps 1", kShort));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, testing::ContainsRegex(
                            "data     .*data.json: 10 records, [0-9]+ tokens, [0-9.]+ % of them "
                            "trained; template alpaca, loss on completion, end token <.im_end.>"));
  EXPECT_THAT(done.out,
              HasSubstr("record   ### Instruction:\\nSay leaf.\\n\\n### Response:\\n>>One "
                        "leaf.<|im_end|><<\n"));
  const Finished all =
      run("all", fmt::format("{} --steps 1 --loss_on all --append_eos off", kShort));
  EXPECT_THAT(all.out,
              AllOf(HasSubstr("loss on all, end token as the tokenizer has it"),
                    HasSubstr("record   >>### Instruction:"), Not(HasSubstr("<|im_end|>"))));
}

TEST_F(Defaults, MasksThatCannotBeMeantAreRefused) {
  expect_refused(run("out", fmt::format("{} --max_length 8", kShort)),
                 {"[dataset]", "data.json", "10 of 10 records (100.0 %)", "cut at 8 tokens",
                  "raise max_length"});
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  EXPECT_EQ(run("out", fmt::format("{} --max_length 8 --loss_on all --steps 1", kShort)).code, 0);
  std::string text = content_of(path("source/tokenizer.json"));
  while (text.find("<|endoftext|>") != std::string::npos) {  // its name alone makes it an end token
    text.replace(text.find("<|endoftext|>"), 13, "<|padding__|>");
  }
  write("source/tokenizer.json", text);
  write("source/tokenizer_config.json", R"({"pad_token": "<|padding__|>"})");
  expect_refused(run("out2", kShort), {"[tokenizer]", "no eos_token", "--append_eos off"});
}

TEST_F(Defaults, ABatchLargerThanTheDataIsSaid) {
  const Finished large = run("large", "--lr 1e-3 --batch_size 100 --num_train_epochs 2");
  ASSERT_EQ(large.code, 0) << large.err;
  EXPECT_THAT(large.out, HasSubstr("batch    100 = 100 per micro-batch x 1 accumulation x 1 rank; "
                                   "more than the 10 records: a step takes all of them\n"));
  EXPECT_EQ(column("large", "epoch"), (std::vector<std::string>{"1", "2"}));
  const Finished fits = run("fits", "--lr 1e-3 --batch_size 10 --steps 1");
  EXPECT_THAT(fits.out, Not(HasSubstr("more than")));
}

TEST_F(Defaults, TransformersFlagsMeanTheSame) {
  ASSERT_EQ(run("ours",
                "--lr 3e-3 --batch_size 2 --steps 6 --save_every 2 --keep 1 --warmup 0.5 "
                "--lr_scheduler cosine --gradient_clipping 0.1")
                .code,
            0);
  const std::string theirs =
      "--learning_rate 3e-3 --per_device_train_batch_size 2 --max_steps 6 --save_steps 2 "
      "--save_total_limit 1 --warmup_ratio 0.5 --lr_scheduler_type cosine --max_grad_norm 0.1 ";
  const Finished done = run("theirs", theirs);
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(column("theirs", "loss"), column("ours", "loss"));
  EXPECT_EQ(column("theirs", "lr"), column("ours", "lr"));
  for (const char* output : {"ours", "theirs"}) {
    EXPECT_FALSE(fs::exists(folder_ / output / "checkpoints/step-00000004"));
    EXPECT_TRUE(fs::exists(folder_ / output / "checkpoints/step-00000006"));
  }
  const Finished resumed =
      run("theirs", theirs + fmt::format("--resume_from_checkpoint '{}'", path("theirs")));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("resume   after step 6"));
  const Finished newest = run("theirs", theirs + "--resume_from_checkpoint True");
  EXPECT_THAT(newest.out, HasSubstr("resume   after step 6"));
  const Finished fresh = run("fresh", fmt::format("{} --max_steps -1 --num_train_epochs 1 "
                                                  "--resume_from_checkpoint False",
                                                  kShort));
  EXPECT_THAT(fresh.out, HasSubstr("5 steps = 1 epoch of 5\n"));
  for (const auto& [flag, answer] : {std::pair{"--bf16", "here it is --dtype bf16"},
                                     {"--bf16=true", "--dtype bf16"},
                                     {"--report_to none", "metrics.jsonl"},
                                     {"--lora_rank 8", "here it is --lora_r"},
                                     {"--cutoff_len 64", "here it is --max_length"},
                                     {"--eval_strategy steps", "--eval_every N"},
                                     {"--eval_steps 10", "--eval_every needs records"},
                                     {"--quantum_leap 3", "--help lists the flags"},
                                     {"--gradient_checkpointing", "--activation_checkpointing"}}) {
    expect_refused(run("out", fmt::format("{} {}", kShort, flag)), {answer});
  }
}

TEST_F(Defaults, WarmupStepsAreThoseOfTheRateAndOfTheExampleByItsRecipe) {
  const auto rates = [&](const std::string& output, const std::string& more) {
    const Finished done = run(output, fmt::format("{} --steps 6 {}", kShort, more));
    EXPECT_EQ(done.code, 0) << done.err;
    return column(output, "lr");
  };
  const auto half = rates("half", "--warmup 0.5");
  EXPECT_NEAR(std::stod(half[1]), 1e-3, 1e-18);
  EXPECT_EQ(rates("count", "--warmup_steps 3"), half);
  EXPECT_EQ(rates("share", "--warmup_steps 0.5"), half);
  EXPECT_EQ(rates("both", "--warmup_steps 3 --warmup_ratio 0.1"), half);  // as in Transformers
  EXPECT_EQ(rates("neither", "--warmup_steps 0 --warmup_ratio 0.5"), half);
  EXPECT_EQ(std::stod(rates("none", "--warmup_steps 0")[0]), 3e-3);
  const auto longer = rates("longer", "--warmup_steps 100");
  for (std::size_t i = 0; i < longer.size(); ++i) {
    EXPECT_NEAR(std::stod(longer[i]), 3e-5 * static_cast<double>(i), 1e-18) << i;
  }
  const auto example = rates("example", "--recipe deepspeed_example");
  EXPECT_EQ(rates("timed", "--recipe deepspeed_example --warmup_steps 3"), example);
  EXPECT_THAT(content_of(folder_ / "timed/summary.json"), HasSubstr("\"warmup_steps\": 3"));
  EXPECT_THAT(content_of(folder_ / "count/summary.json"), HasSubstr("\"warmup_steps\": 0"));
  expect_refused(run("out", fmt::format("{} --warmup_steps 2.5", kShort)),
                 {"--warmup_steps is 2.5", "a share"});
  const std::string config =
      write("warm.json", R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps":
            "auto", "warmup_max_lr": "auto"}}, "train_micro_batch_size_per_gpu": 2})");
  const Finished filled = run("filled", fmt::format("--deepspeed_config '{}' --lr 3e-3 --steps 4 "
                                                    "--warmup_steps 3",
                                                    config));
  EXPECT_THAT(filled.out, HasSubstr("warmup_num_steps: 3, from --warmup_steps and --steps"))
      << filled.err;
  const std::string fixed =
      write("fixed.json", R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 2}},
            "train_micro_batch_size_per_gpu": 2})");
  expect_refused(
      run("out", fmt::format("--deepspeed_config '{}' --lr 3e-3 --warmup_steps 3", fixed)),
      {"--warmup_steps", "WarmupLR", "contradict"});
}

TEST_F(Defaults, EvalStepsAreThoseBetweenEvaluations) {
  const auto evaluations = [&](const std::string& output, const std::string& more) {
    const Finished done =
        run(output, fmt::format("{} --steps 6 --eval_split 0.4 {}", kShort, more));
    EXPECT_EQ(done.code, 0) << done.err;
    return column(output, "eval_tokens");
  };
  const auto each_second = evaluations("second", "--eval_steps 2");
  EXPECT_EQ(each_second.size(), 3U);
  EXPECT_EQ(evaluations("half", "--eval_steps 0.5").size(), 2U);  // half of the run
  const auto one = evaluations("one", "--eval_every 2 --eval_batches 1");
  ASSERT_EQ(one.size(), 3U);
  EXPECT_LT(std::stod(one[0]), std::stod(each_second[0]));
  expect_refused(run("out", fmt::format("{} --eval_split 0.4 --eval_steps 2.5", kShort)),
                 {"--eval_every is 2.5", "a share"});
}

TEST_F(Defaults, TheSourceModelIsNeverOverwritten) {
  fs::create_directories(path("run"));
  fs::rename(path("source"), path("run/model"));
  const std::string weights = content_of(folder_ / "run/model/model.safetensors");
  const auto onto = [&](const std::string& model, const std::string& output) {
    return train(fmt::format("--model_name '{}' --dataset_name '{}' --output_dir '{}' {} --steps 1",
                             path(model), path("data.json"), path(output), kShort));
  };
  for (const auto& [model, output] :
       {std::pair{"run/model", "run"}, {"run", "run"}, {"run/model", "other/../run"}}) {
    expect_refused(onto(model, output), {"[output]", "the source model lies in"});
  }
  fs::create_directory_symlink(path("run"), path("link"));
  expect_refused(onto("run/model", "link"), {"the source model lies in"});
  EXPECT_FALSE(fs::exists(folder_ / "run/metrics.jsonl"));
  EXPECT_EQ(content_of(folder_ / "run/model/model.safetensors"), weights);
  EXPECT_EQ(onto("run", "new").code, 0);
}

TEST_F(Defaults, TheRecipeIsTheDeepSpeedExamples) {
  const std::string epochs = fmt::format("{} --num_train_epochs 60 ", kShort);
  const Finished recipe = run("recipe", epochs + "--recipe deepspeed_example");
  ASSERT_EQ(recipe.code, 0) << recipe.err;
  EXPECT_THAT(recipe.out, AllOf(HasSubstr("100 steps = 20 epochs of 5"), HasSubstr("loss on all"),
                                HasSubstr("end token as the tokenizer has it")));
  const auto rates = column("recipe", "lr");
  ASSERT_EQ(rates.size(), 100U);
  EXPECT_EQ(std::ranges::count(rates, rates.back()), 100);  // 1 % of them are the warm-up's
  ASSERT_EQ(run("flags", epochs + "--append_eos off --loss_on all --lr_scheduler constant "
                                  "--bench_steps 100")
                .code,
            0);
  EXPECT_EQ(column("flags", "loss"), column("recipe", "loss"));
  const Finished typed = run("typed", epochs +
                                          "--recipe deepspeed_example --bench_steps 3 "
                                          "--loss_on completion");
  EXPECT_THAT(typed.out, AllOf(HasSubstr("3 steps = 0.6 epochs"), HasSubstr("loss on completion")));
  expect_refused(run("out", fmt::format("{} --recipe example", kShort)),
                 {"--recipe", "deepspeed_example"});
  expect_refused(run("out", fmt::format("{} --lr_scheduler step", kShort)),
                 {"--lr_scheduler", "cosine"});
  const std::string config = write("ds.json", R"({"train_batch_size": 2,
      "scheduler": {"type": "WarmupLR", "params": {}}})");
  expect_refused(
      run("out", fmt::format("{} --lr_scheduler linear --deepspeed_config '{}'", kShort, config)),
      {"--lr_scheduler", "WarmupLR"});
}

TEST_F(Defaults, AConfigSaysWhatFlagsNeedNot) {
  const auto with = [&](const char* name, const char* batch, const char* rate) {
    return write(name, fmt::format(R"({{"train_micro_batch_size_per_gpu": {}, "bf16":
      {{"enabled": "auto"}}, "optimizer": {{"type": "AdamW", "params": {{"lr": {}, "betas": "auto",
      "eps": "auto", "weight_decay": "auto"}}}}, "zero_optimization": {{"stage": 3}}}})",
                                   batch, rate));
  };
  const std::string own = with("own.json", "2", "3e-3");
  const std::string open = with("open.json", "\"auto\"", "\"auto\"");
  const auto by = [&](const std::string& output, const std::string& config, const char* flags) {
    return run(output, fmt::format("--deepspeed_config '{}' --steps 6 {}", config, flags));
  };
  ASSERT_EQ(run("flags", fmt::format("{} --steps 6", kShort)).code, 0);
  const Finished written = by("written", own, "");
  ASSERT_EQ(written.code, 0) << written.err;
  const Finished filled = by("filled", open, kShort);
  ASSERT_EQ(filled.code, 0) << filled.err;
  // The same run three times: flags alone, the file alone, and "auto" with the flags.
  EXPECT_EQ(column("written", "loss"), column("flags", "loss"));
  EXPECT_EQ(column("filled", "loss"), column("flags", "loss"));
  EXPECT_THAT(filled.out,
              AllOf(HasSubstr("train_micro_batch_size_per_gpu: 2, from --batch_size\n"),
                    HasSubstr("optimizer.params.lr: 0.003, from --lr\n"),
                    HasSubstr("optimizer.params.weight_decay: 0.01, from --weight_decay\n")));
  expect_refused(by("none", open, "--batch_size 2"), {"no learning rate", "--lr", "open.json"});
  expect_refused(by("none", open, "--lr 3e-3"), {"no batch size", "--batch_size", "open.json"});
  expect_refused(by("none", own, "--lr 1e-3"), {"--lr is 0.001", "own.json is 0.003"});
}

TEST_F(Defaults, TheDemosBatchIsForAConfigThatHasNone) {
  for (const auto& [keys, line] :
       {std::pair{R"("train_batch_size": 8, )", "batch    8 = 8 per micro-batch x 1"},
        std::pair{R"("train_micro_batch_size_per_gpu": 4, )", "batch    4 = 4 per micro-batch x 1"},
        std::pair{"", "batch    16 = 16 per micro-batch x 1"}}) {
    const std::string config =
        write("ds.json", fmt::format(R"({{{}"zero_optimization": {{"stage": 2}}}})", keys));
    const Finished done =
        train(fmt::format("--deepspeed_config '{}' --steps 1 --no-samples --progress lines "
                          "--output_dir '{}'",
                          config, path("demo")));
    EXPECT_EQ(done.code, 0) << done.err;
    EXPECT_THAT(done.out, HasSubstr(line));
    const Finished other =
        train(fmt::format("--deepspeed_config '{}' --steps 1 --no-samples --batch_size 6 "
                          "--output_dir '{}'",
                          config, path("typed")));
    EXPECT_EQ(other.code, std::string_view(keys).empty() ? 0 : 2) << other.err;
  }
}

TEST_F(Defaults, AutoOfASchedulerIsTheRunsLength) {
  const std::string config = write("ds.json", R"({"train_micro_batch_size_per_gpu": "auto",
      "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
      "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto",
        "warmup_type": "linear", "warmup_min_lr": "auto", "warmup_max_lr": "auto",
        "warmup_num_steps": "auto"}}})");
  const Finished done = run("out", fmt::format("--deepspeed_config '{}' --batch_size 1 "
                                               "--num_train_epochs 2 --warmup 0.2",
                                               config));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("total_num_steps: 20, from the length of the run\n"),
                              HasSubstr("warmup_num_steps: 4, from --warmup and the length"),
                              HasSubstr("warmup_max_lr: 0.01, from optimizer.params.lr\n")));
  const auto rates = column("out", "lr");
  ASSERT_EQ(rates.size(), 20U);
  EXPECT_NEAR(std::stod(rates[5]), 0.01, 1e-3);  // the top of the warm-up
  EXPECT_LT(std::stod(rates.back()), 2e-3);      // and its end falls to nothing
}

}  // namespace
}  // namespace tandem
