// `tandem generate`: continues a prompt with a model from any folder in Hugging Face format, so
// that a person can look at what was trained.
#include "models/generate.hpp"

#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/config/config.hpp"
#include "engine/device/device_choice.hpp"
#include "engine/engine.hpp"
#include "examples/support/program.hpp"
#include "models/pretrained.hpp"
#include "runtime/util/error.hpp"
#include "tools/cli/commands.hpp"

namespace tandem {
namespace {

struct Flags {
  std::string model_name;
  std::string prompt;
  std::string dtype = "fp32";
  std::string device = "cpu";
  std::int64_t max_new_tokens = 64;
  double temperature = 0;
  double top_p = 1;
  std::uint64_t seed = 0;
  bool ids = false;
};

void add_flags(CLI::App& app, Flags& f) {
  app.add_option("--model_name", f.model_name, "folder in Hugging Face format, or a cached hub id")
      ->required();
  app.add_option("--prompt", f.prompt, "the text to continue")->required();
  app.add_option("--max_new_tokens", f.max_new_tokens, "tokens at most")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--temperature", f.temperature,
                 "above 0: tokens are drawn, the higher the more freely; 0: the most likely ones")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--top_p", f.top_p,
                 "with --temperature, draw among the most likely tokens of this probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--seed", f.seed, "of what is drawn")->capture_default_str();
  app.add_option("--dtype", f.dtype, "compute type")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  app.add_option("--device", f.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_flag("--ids", f.ids, "print the new token ids as a JSON array instead of the text");
}

std::vector<std::int64_t> prompt_of(const Flags& flags, const Pretrained& pretrained) {
  const std::vector<std::int32_t> encoded = pretrained.tokenizer().encode(flags.prompt, true);
  if (encoded.empty()) {
    throw user_error("generate", "--prompt is \"{}\", no tokens; give some text", flags.prompt);
  }
  const std::int64_t positions = pretrained.config().max_position_embeddings;
  const std::int64_t needed = std::ssize(encoded) + flags.max_new_tokens;
  if (needed > positions) {
    throw user_error("generate",
                     "{} tokens of the prompt and --max_new_tokens {} are {}, the model has {} "
                     "positions; ask for less",
                     encoded.size(), flags.max_new_tokens, needed, positions);
  }
  return {encoded.begin(), encoded.end()};
}

}  // namespace

int run_generate(int argc, char** argv) {
  CLI::App app("Continues a text with a saved model.", "tandem generate");
  Flags flags;
  add_flags(app, flags);
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  const DeviceKind device = choose_device(flags.device);
  const Pretrained pretrained = Pretrained::open(flags.model_name, {.trains = false});
  const std::vector<std::int64_t> prompt = prompt_of(flags, pretrained);
  GenerateOptions options = generate_options(pretrained);
  options.max_new_tokens = flags.max_new_tokens;
  options.temperature = flags.temperature;
  options.top_p = flags.top_p;
  options.seed = flags.seed;
  const std::string config = fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 1, "bf16": {{"enabled": {}}},
           "zero_optimization": {{"stage": 0}}}})",
      flags.dtype == "bf16");
  Engine engine({.model = pretrained.model(),
                 .config = parse_config(config, "generate", 1),
                 .options = {.device = device}});
  const std::vector<std::int64_t> ids = generate(engine, prompt, options);
  if (flags.ids) {
    fmt::print("[{}]\n", fmt::join(ids, ", "));
  } else {
    const std::vector<std::int32_t> text(ids.begin(), ids.end());
    fmt::print("{}\n", pretrained.tokenizer().decode(text, true));
  }
  return 0;
}

}  // namespace tandem
