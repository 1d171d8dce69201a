// make_model — writes a Hugging Face model folder with random weights: config, model.safetensors,
// tokenizer files.
//
// The same seed gives the same bytes on every machine (models/io/random_init.hpp).
#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "models/causal_lm.hpp"
#include "models/checkpoint_layout.hpp"
#include "models/io/hf_config.hpp"
#include "models/io/tokenizer/tokenizer.hpp"
#include "models/io/weights_writer.hpp"
#include "runtime/util/error.hpp"
#include "trainer/program/program.hpp"

namespace tandem {
namespace {

constexpr std::uint64_t kMostConfigBytes = 4u << 20;

struct Flags {
  std::string config;
  std::string tokenizer;
  std::string output;
  std::uint64_t seed = 0;
  std::string dtype = "float32";
  std::map<std::string, std::int64_t> sizes;  // flag -> value, where given
};

/// A size and what config.json calls it; the second name is that of files with n_embd (empty: such
/// files have no such size).
struct SizeFlag {
  std::string_view flag;
  std::string_view name;
  std::string_view older_name;
};
constexpr SizeFlag kSizeFlags[] = {
    {"vocab", "vocab_size", "vocab_size"},
    {"hidden", "hidden_size", "n_embd"},
    {"layers", "num_hidden_layers", "n_layer"},
    {"heads", "num_attention_heads", "n_head"},
    {"kv_heads", "num_key_value_heads", ""},
    {"head_dim", "head_dim", ""},
    {"intermediate", "intermediate_size", "n_inner"},
    {"positions", "max_position_embeddings", "n_positions"},
};

/// The config file with the overrides put in; layer_types would contradict another number of
/// layers, so it goes.
std::string overridden_config(const Flags& flags, std::string json) {
  const auto has = [&json](std::string_view key) {
    return json.find(fmt::format("\"{}\"", key)) != std::string::npos;
  };
  const bool has_older_names = has("n_embd");
  for (const SizeFlag& size : kSizeFlags) {
    const auto given = flags.sizes.find(std::string(size.flag));
    if (given == flags.sizes.end()) {
      continue;
    }
    const std::string_view key = has_older_names ? size.older_name : size.name;
    if (key.empty()) {
      throw user_error("make_model", "--{} means nothing for this model_type; leave it out",
                       size.flag);
    }
    json = with_json_member(json, key, std::to_string(given->second));
    if (size.flag == "layers" && has("layer_types")) {
      json = with_json_member(json, "layer_types", "null");
    }
  }
  return json;
}

void write_weights(const HfConfig& config, const Flags& flags) {
  const TensorType type = tensor_type_of(flags.dtype);
  WeightsWriter writer(flags.output, checkpoint_plan(config, type));
  std::vector<float> buffer(std::size_t{1} << 20);
  for (const ParameterSpec& tensor : checkpoint_tensors(config)) {
    for (std::int64_t at = 0; at < tensor.numel();) {
      const std::int64_t end =
          std::min(tensor.numel(), at + static_cast<std::int64_t>(buffer.size()));
      fill_initial(tensor, flags.seed, fresh_weights(config), at, end, buffer.data());
      writer.append_f32(std::span(buffer.data(), static_cast<std::size_t>(end - at)));
      at = end;
    }
  }
  writer.finish();
}

int run(int argc, char** argv) {
  CLI::App app("Writes a Hugging Face model folder with random weights", "make_model");
  Flags flags;
  app.add_option("--config", flags.config, "config.json to start from")->required();
  app.add_option("--tokenizer", flags.tokenizer, "folder whose tokenizer files are copied");
  app.add_option("--output", flags.output, "folder to write")->required();
  app.add_option("--seed", flags.seed, "of the weights")->capture_default_str();
  app.add_option("--dtype", flags.dtype, "float32, bfloat16 or float16")->capture_default_str();
  std::map<std::string, std::int64_t> sizes;
  for (const SizeFlag& size : kSizeFlags) {
    app.add_option(fmt::format("--{}", size.flag), sizes[std::string(size.flag)],
                   fmt::format("instead of {} (0: as in the file)", size.name));
  }
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  for (const auto& [flag, value] : sizes) {
    if (value != 0) {
      flags.sizes.emplace(flag, value);
    }
  }
  const std::string original = read_file(flags.config, "make_model", kMostConfigBytes);
  const HfConfig config = parse_hf_config(overridden_config(flags, original), flags.config);
  if (!flags.tokenizer.empty()) {
    check_tokenizer_fits(Tokenizer::load(flags.tokenizer), config);
  }
  make_writable_folder(flags.output, "make_model");
  write_hf_config(config, flags.output, flags.dtype);
  if (!flags.tokenizer.empty()) {
    copy_tokenizer_files(flags.tokenizer, flags.output);
  }
  write_weights(config, flags);
  std::cout << parameter_count(config) << " parameters in " << flags.output << "\n";
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  return tandem::guarded_main([&] { return tandem::run(argc, argv); });
}
