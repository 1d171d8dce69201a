// `tandem logits`: one JSON array of token ids on standard input; the logits of every position as
// JSON [T][V] on standard output, each float in its shortest exact form. For holding a model of
// ours against another implementation.
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "actors/storage/json.hpp"
#include "engine/config/config.hpp"
#include "engine/engine.hpp"
#include "models/pretrained.hpp"
#include "runtime/util/json_writer.hpp"
#include "tools/cli/commands.hpp"
#include "trainer/program/notes.hpp"
#include "trainer/program/program.hpp"

namespace tandem {
namespace {

std::vector<std::int64_t> read_ids(std::int64_t vocabulary) {
  const std::string text(std::istreambuf_iterator<char>(std::cin), {});
  const JsonDocument document =
      JsonDocument::parse(text, {"logits", "standard input", "give one JSON array of token ids"});
  std::vector<std::int64_t> ids;
  for (const JsonValue& id : document.root().items()) {
    ids.push_back(id.integer(0, vocabulary - 1));
  }
  if (ids.empty()) {
    throw user_error("logits", "standard input holds no token id; give at least one");
  }
  return ids;
}

}  // namespace

int run_logits(int argc, char** argv) {
  CLI::App app("Logits of a model for the token ids on standard input.", "tandem logits");
  std::string folder;
  std::string dtype = "fp32";
  app.add_option("--model_name", folder, "folder in Hugging Face format")->required();
  app.add_option("--dtype", dtype, "compute type")->check(CLI::IsMember({"fp32", "bf16"}));
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  const Pretrained pretrained = Pretrained::open(folder, {.trains = false});
  print_notes(pretrained.notes());
  std::vector<std::int64_t> ids = read_ids(pretrained.config().vocab_size);
  const std::string config = fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 1, "bf16": {{"enabled": {}}},
           "zero_optimization": {{"stage": 3}}}})",
      dtype == "bf16");
  Engine engine({.model = pretrained.model(), .config = parse_config(config, "logits", 1)});
  const auto length = static_cast<std::int64_t>(ids.size());
  const at::Tensor logits =
      engine.logits({.inputs = at::from_blob(ids.data(), {1, length}, at::kLong)}).contiguous();
  const std::int64_t vocabulary = logits.size(2);
  JsonWriter json;
  json.begin_array();
  for (std::int64_t t = 0; t < length; ++t) {
    json.value(std::span<const float>(logits.data_ptr<float>() + t * vocabulary,
                                      static_cast<std::size_t>(vocabulary)));
  }
  json.end_array();
  fmt::print("{}\n", json.text());
  return 0;
}

}  // namespace tandem
