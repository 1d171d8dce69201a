#include "trainer/finetune/demo.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "models/generate.hpp"
#include "trainer/training_run.hpp"

namespace tandem {

namespace {

constexpr std::int64_t kDemoSteps = 800;
constexpr std::size_t kSamples = 4;

/// One line of text, however many the model wrote.
std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

/// The demo's folder: beside an installed program, else the source tree's.
std::string demo_folder(const std::string& of_tree) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto installed = program.parent_path().parent_path() / "share/tandem/demo";
  return std::filesystem::is_directory(installed, error) ? installed.string() : of_tree;
}

}  // namespace

void apply_demo_defaults(FinetuneFlags& flags, const std::string& folder_of_tree) {
  const std::string folder = demo_folder(folder_of_tree);
  flags.model_name = folder;
  if (!flags.given("--dataset_name")) {
    flags.dataset_name = folder + "/instructions.json";
  }
  if (!flags.given("--output_dir")) {
    flags.output_dir = fresh_output_dir("demo");
  }
  if (!flags.given("--lr")) {
    flags.lr = 1e-3;
  }
  if (!flags.given("--batch_size")) {
    flags.batch_size = 16;
  }
  if (!flags.given("--max_length")) {
    flags.max_length = 64;
  }
  if (!flags.given("--warmup")) {
    flags.warmup = 0.1;
  }
  if (!flags.given("--log_interval")) {
    flags.log_interval = 25;
  }
  if (flags.steps == 0 && !flags.given("--bench_steps") && !flags.given("--num_train_epochs")) {
    flags.steps = kDemoSteps;
  }
}

void show_samples(MetricsWriter& metrics, std::string_view when, const Pretrained& pretrained,
                  Engine& engine, std::span<const AlpacaRecord> records) {
  if (records.empty()) {  // the data came as tokens
    return;
  }
  const Tokenizer& tokenizer = pretrained.tokenizer();
  GenerateOptions options = generate_options(pretrained);
  options.max_new_tokens = 24;
  metrics.note(fmt::format("samples {}:", when));
  for (std::size_t i = 0; i < kSamples; ++i) {
    const AlpacaRecord& record = records[i * records.size() / kSamples];
    const std::vector<std::int32_t> prompt = tokenizer.encode(alpaca_question(record));
    const std::vector<std::int64_t> answer =
        generate(engine, std::vector<std::int64_t>(prompt.begin(), prompt.end()), options);
    const std::vector<std::int32_t> ids(answer.begin(), answer.end());
    metrics.note(fmt::format("  {}{}{}", one_line(record.instruction),
                             record.input.empty() ? "" : " | ", one_line(record.input)));
    metrics.note(fmt::format("    model: {}", one_line(tokenizer.decode(ids, true))));
    metrics.note(fmt::format("    data:  {}", one_line(record.output)));
  }
}

}  // namespace tandem
