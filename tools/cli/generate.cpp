// `tandem generate`: continues prompts with a model from any folder in Hugging Face format, so that
// a person can look at what was trained. A text is printed as it is made.
#include "models/generate.hpp"

#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "actors/storage/json.hpp"
#include "engine/config/config.hpp"
#include "engine/engine.hpp"
#include "engine/tensors/device_choice.hpp"
#include "models/io/folder_members.hpp"
#include "models/io/tokenizer/text_stream.hpp"
#include "models/pretrained.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/utf8.hpp"
#include "tools/cli/commands.hpp"
#include "trainer/program/notes.hpp"
#include "trainer/program/program.hpp"
#include "trainer/program/seed_flag.hpp"

namespace tandem {
namespace {

constexpr std::string_view kStandardInput = "-";

struct Flags {
  std::string model_name;
  std::optional<std::string> prompt, prompts;
  bool as_rendered = false;
  bool chat = false;
  std::optional<std::string> system, chat_template;
  std::string dtype = "fp32";
  std::string device = "cpu";
  std::int64_t max_new_tokens = 64;
  double temperature = 0;
  double top_p = 1;
  std::uint64_t seed = 0;
  bool ids = false;
};

void add_prompt_flags(CLI::App& app, Flags& f) {
  auto* prompt = app.add_option("--prompt", f.prompt, "the text to continue");
  app.add_option("--prompts", f.prompts,
                 "a file with a prompt in each line; .jsonl: a JSON string, or an object with "
                 "\"prompt\"; -: JSON strings on standard input")
      ->excludes(prompt);
  app.add_flag("--as_rendered", f.as_rendered,
               "prompts spell out all special tokens: the tokenizer adds none");
  app.add_flag("--chat", f.chat,
               "answer with the model's chat template (by ./tandem generate, which renders it); "
               "--prompts may then have objects with \"messages\"");
  app.add_option("--system", f.system, "with --chat, the system's message");
  app.add_option("--chat_template", f.chat_template, "with --chat, a file with another template");
}

void add_flags(CLI::App& app, Flags& f) {
  app.add_option("--model_name", f.model_name, "folder in Hugging Face format, or a cached hub id")
      ->required();
  add_prompt_flags(app, f);
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
  add_seed(app, f.seed, "of what is drawn");
  app.add_option("--dtype", f.dtype, "compute type")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  app.add_option("--device", f.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_flag("--ids", f.ids, "print the new token ids as a JSON array instead of the text");
}

void check_prompt_flags(const Flags& f) {
  if (f.chat || f.system || f.chat_template) {
    throw user_error("generate",
                     "--chat, --system and --chat_template: this program renders no templates; "
                     "./tandem generate --chat does");
  }
  if (!f.prompt && !f.prompts) {
    throw user_error("generate", "there is nothing to continue; give --prompt or --prompts");
  }
}

/// The prompt in a line of a JSON file.
std::string prompt_in(const std::string& line, const std::string& file, std::size_t number) {
  const JsonDocument document =
      JsonDocument::parse(line, {.where = "generate",
                                 .file = fmt::format("{}, line {}", file, number),
                                 .advice = "give a JSON string, or an object with \"prompt\""});
  const JsonValue root = document.root();
  return std::string(root.is_object() ? root.at("prompt").string() : root.string());
}

std::vector<std::string> prompts_of(const Flags& flags) {
  if (flags.prompt) {
    return {*flags.prompt};
  }
  const std::string& name = *flags.prompts;
  std::ifstream file;
  if (name != kStandardInput) {
    file.open(name);
    if (!file) {
      throw user_error("generate", "--prompts {} cannot be read; name a file", name);
    }
  }
  const bool json = name == kStandardInput || name.ends_with(".jsonl") || name.ends_with(".json");
  std::istream& in = name == kStandardInput ? std::cin : file;
  std::vector<std::string> prompts;
  std::string line;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    const std::string prompt(text_of_line(line, number == 1));
    if (prompt.find_first_not_of(" \t\r") != std::string::npos) {
      prompts.push_back(json ? prompt_in(prompt, name, number) : prompt);
    }
  }
  if (prompts.empty()) {
    throw user_error("generate", "--prompts {} has no prompt; write one in each line", name);
  }
  return prompts;
}

std::vector<std::int64_t> tokens_of(const std::string& prompt, const Flags& flags,
                                    const Pretrained& pretrained) {
  const std::vector<std::int32_t> encoded =
      pretrained.tokenizer().encode(prompt, !flags.as_rendered);
  if (encoded.empty()) {
    throw user_error("generate", "a prompt is \"{}\", no tokens; give some text", prompt);
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

void print_now(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw failure(ExitCode::kFailure, "generate", "cannot write to standard output; check it");
  }
}

void answer(Engine& engine, const std::vector<std::int64_t>& prompt, GenerateOptions options,
            const Flags& flags, const Tokenizer& tokenizer) {
  if (flags.ids) {
    print_now(fmt::format("[{}]\n", fmt::join(generate(engine, prompt, options), ", ")));
    return;
  }
  TextStream text(tokenizer);
  options.on_token = [&](std::int64_t id) { print_now(text.push(static_cast<std::int32_t>(id))); };
  (void)generate(engine, prompt, options);
  print_now(text.finish() + "\n");
}

}  // namespace

int run_generate(int argc, char** argv) {
  CLI::App app("Continues texts with a saved model.", "tandem generate");
  Flags flags;
  add_flags(app, flags);
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  check_prompt_flags(flags);
  const DeviceKind device = choose_device(flags.device);
  const std::vector<std::string> prompts = prompts_of(flags);
  const Pretrained pretrained = Pretrained::open(flags.model_name, {.trains = false});
  print_notes(pretrained.notes());
  print_notes(generation_config_notes(pretrained.folder()));
  std::vector<std::vector<std::int64_t>> tokens;
  tokens.reserve(prompts.size());
  for (const std::string& prompt : prompts) {
    tokens.push_back(tokens_of(prompt, flags, pretrained));
  }
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
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens.size() > 1 && !flags.ids) {
      print_now(fmt::format("{}== {} of {}\n", i > 0 ? "\n" : "", i + 1, tokens.size()));
    }
    answer(engine, tokens[i], options, flags, pretrained.tokenizer());
  }
  return 0;
}

}  // namespace tandem
