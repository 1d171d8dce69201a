// tools/cli/parity.cpp — `tandem parity DIR`: the engine against reference outputs that lie beside
// a checkpoint.
//
// DIR holds checkpoint/ and, each optional, logits.safetensors, grads.safetensors,
// batches.safetensors with losses.json and final_TRACE.safetensors. Every check is one line,
//   NAME max_abs=... max_rel=... limit=... PASS|FAIL
// what is absent is named and skipped; exit code 1 on any FAIL. Everything runs through the real
// Engine: a training trace is the same units, slots, actors and Adam kernels as a training run.
//
// Limits stand in one of two places. Beside the values, one for each (tools/make_reference.py
// derives them from rounding): the tensor limit.NAME, and loss_limit and grad_norm_limit of a trace
// in losses.json. Then max_rel is the greatest share that a difference has of its own limit, and
// the limit 1. Or in tolerances.json, one for a whole check.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "actors/storage/json.hpp"
#include "actors/storage/safetensors.hpp"
#include "engine/config/config.hpp"
#include "engine/engine.hpp"
#include "models/causal_lm.hpp"
#include "models/checkpoint_layout.hpp"
#include "runtime/util/one_line.hpp"
#include "tools/cli/commands.hpp"
#include "trainer/program/program.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

std::vector<float> floats_of(const SafetensorsFile& file, std::string_view name) {
  const TensorInfo& info = file.at(name);
  std::vector<float> values(static_cast<std::size_t>(info.numel()));
  file.read_f32(info, 0, info.numel(), values.data());
  return values;
}

/// An I64 tensor [rows, tokens], or the one at index `at` of its leading dimensions.
at::Tensor integers_of(const SafetensorsFile& file, std::string_view name,
                       const std::vector<std::int64_t>& at = {}) {
  const TensorInfo& info = file.at(name);
  const auto leading = static_cast<std::ptrdiff_t>(at.size());
  const bool fits = info.type == TensorType::kI64 && info.shape.size() == at.size() + 2 &&
                    std::equal(at.begin(), at.end(), info.shape.begin(), std::less<>());
  if (!fits) {
    throw user_error(
        "parity", "{}: {} is {} {}, I64 {} is needed; make the reference anew",
        file.path().string(), name, name_of(info.type), shape_text(info.shape),
        at.empty() ? "[rows, tokens]"
                   : fmt::format("[more than {}, rows, tokens]", fmt::join(at, ", more than ")));
  }
  const std::vector<std::int64_t> shape(info.shape.begin() + leading, info.shape.end());
  const std::int64_t numel = shape[0] * shape[1];
  std::int64_t index = 0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    index = index * info.shape[i] + at[i];
  }
  auto* data = const_cast<std::byte*>(file.bytes(info).data()) + index * numel * 8;
  return at::from_blob(data, shape, at::kLong).clone();
}

/// A tensor of the reference, with a limit for each value where there are such.
struct Expected {
  std::vector<float> values;
  std::vector<float> limits;
  /// Throws user_error unless there are `count` values, and as many limits or none.
  Expected(const SafetensorsFile& file, const std::string& name, std::size_t count)
      : values(counted(file, name, count)) {
    if (file.find("limit." + name) != nullptr) {
      limits = counted(file, "limit." + name, count);
    }
  }
  [[nodiscard]] std::optional<double> limit(std::size_t i) const {
    return limits.empty() ? std::nullopt : std::optional<double>(limits[i]);
  }

 private:
  static std::vector<float> counted(const SafetensorsFile& file, const std::string& name,
                                    std::size_t count) {
    const TensorInfo& info = file.at(name);
    if (static_cast<std::size_t>(info.numel()) != count) {
      throw user_error("parity", "{}: {} has {} values, the model {}; make the reference anew",
                       file.path().string(), name, info.numel(), count);
    }
    return floats_of(file, name);
  }
};

/// The numbers that a trace of losses.json has for each step.
struct ExpectedTrace {
  std::vector<std::vector<double>> losses;  // [step][micro-step], as many for every step
  std::vector<double> norms;
  std::vector<double> loss_limits;  // empty: none
  std::vector<double> norm_limits;

  /// Throws user_error where there is no step, or fewer numbers for one than for the first.
  explicit ExpectedTrace(const JsonValue& trace) {
    const auto steps = trace.at("loss").items();
    for (const JsonValue& step : steps) {
      losses.push_back(numbers(step, losses.empty() ? 1 : losses.front().size()));
    }
    if (losses.empty()) {
      throw trace.at("loss").error("it has no step");
    }
    norms = numbers(trace.at("grad_norm"), losses.size());
    if (const auto limits = trace.find("loss_limit")) {
      loss_limits = numbers(*limits, losses.size());
    }
    if (const auto limits = trace.find("grad_norm_limit")) {
      norm_limits = numbers(*limits, losses.size());
    }
  }

 private:
  static std::vector<double> numbers(const JsonValue& list, std::size_t at_least) {
    std::vector<double> values;
    for (const JsonValue& value : list.items()) {
      values.push_back(value.number());
    }
    if (values.size() < at_least) {
      throw list.error(fmt::format("it has {} numbers, {} are needed", values.size(), at_least));
    }
    return values;
  }
};

/// Not a number is more than any number.
double greater(double a, double b) { return a > b || std::isnan(a) ? a : b; }

struct Difference {
  double abs = 0;               // greatest absolute difference
  double reference = 0;         // greatest absolute reference value
  double squares = 0;           // sum of squared differences
  std::optional<double> share;  // greatest share of a value's own limit
  void add(double value, double expected, std::optional<double> limit) {
    const double difference = std::abs(value - expected);
    abs = greater(difference, abs);
    reference = std::max(reference, std::abs(expected));
    squares += difference * difference;
    if (limit) {
      share = greater(difference == 0 ? 0 : difference / *limit, share.value_or(0));
    }
  }
  [[nodiscard]] double rel() const {
    return share ? *share : reference > 0 ? abs / reference : abs;
  }
};

/// The tensor that is farthest off.
struct Worst {
  Difference difference;
  std::string name;
  void take(const Difference& other, const std::string& of) {
    const bool lost = std::isnan(difference.rel());  // nothing is farther off
    if (name.empty() || (!lost && !(other.rel() <= difference.rel()))) {
      difference = other;
      name = of;
    }
  }
};

class Parity {
 public:
  Parity(fs::path folder, std::string dtype)
      : folder_(std::move(folder)), dtype_(std::move(dtype)) {
    if (!fs::is_directory(folder_ / "checkpoint")) {
      throw user_error(
          "parity",
          "{} holds no checkpoint folder; give a folder as ./tandem parity --help describes",
          folder_.string());
    }
    config_ = read_hf_config(folder_ / "checkpoint");
    read_limits();
  }

  int run() {
    logits(folder_ / "checkpoint", "logits");
    if (fs::is_directory(folder_ / "checkpoint_hub_layout")) {
      logits(folder_ / "checkpoint_hub_layout", "logits hub_layout");
    }
    other_spelling();
    gradients();
    traces();
    if (without_limits_) {
      skip("limits", "neither beside the values nor in tolerances.json: such checks cannot fail");
    }
    return failed_ ? 1 : 0;
  }

 private:
  /// An engine over the checkpoint with the reference's optimizer.
  std::unique_ptr<Engine> engine(const fs::path& checkpoint, std::int64_t accumulation, double clip,
                                 const std::string& dtype) const {
    HfConfig config = read_hf_config(checkpoint);
    config.dropout = {};  // references are made without: each library draws masks of its own
    const auto reader =
        std::make_shared<CheckpointReader>(CheckpointReader::open(checkpoint, config));
    const std::string json = fmt::format(
        R"({{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": {},
             "gradient_clipping": {}, "bf16": {{"enabled": {}}}, "optimizer": {},
             "zero_optimization": {{"stage": 3, "offload_optimizer": {{"device": "cpu"}}}}}})",
        accumulation, clip, dtype == "bf16", optimizer_);
    Model model = make_causal_lm(config);
    model.source = [reader](const ParameterSpec& parameter, std::int64_t begin, std::int64_t end,
                            float* out) { reader->read_f32(parameter.name, begin, end, out); };
    return std::make_unique<Engine>(
        InitializeArgs{.model = std::move(model), .config = parse_config(json, "parity", 1)});
  }

  void read_limits() {
    const fs::path file = folder_ / "tolerances.json";
    if (!fs::exists(file)) {
      return;
    }
    const JsonDocument document =
        JsonDocument::load(file, {"parity", file.string(), "see --help for the format"}, 1 << 24);
    for (const auto& [key, value] : document.root().at("recommended").members()) {
      limits_[std::string(key)] = value.number();
    }
  }

  void skip(const std::string& name, const std::string& why) const {
    fmt::print("{} skipped: {}\n", one_line(name), one_line(why));
  }

  /// `limit` names the entry of tolerances.json; `relative`: it bounds max_rel, else max_abs.
  void report(const std::string& name, double abs, double rel, const std::string& limit,
              bool relative) {
    const auto found = limits_.find(limit);
    if (found == limits_.end()) {
      without_limits_ = true;
      fmt::print("{} max_abs={:.3g} max_rel={:.3g} limit=none\n", one_line(name), abs, rel);
      return;
    }
    judge(name, abs, rel, relative ? rel : abs, found->second);
  }
  /// A difference that knows its share of limits is held to these.
  void report(const std::string& name, const Difference& difference, const std::string& limit,
              bool relative) {
    if (difference.share) {
      judge(name, difference.abs, difference.rel(), difference.rel(), 1);
    } else {
      report(name, difference.abs, difference.rel(), limit, relative);
    }
  }
  void judge(const std::string& name, double abs, double rel, double value, double limit) {
    const bool pass = value <= limit;
    failed_ |= !pass;
    fmt::print("{} max_abs={:.3g} max_rel={:.3g} limit={:.3g} {}\n", one_line(name), abs, rel,
               limit, pass ? "PASS" : "FAIL");
  }

  std::optional<SafetensorsFile> open(const char* name) const {
    if (!fs::exists(folder_ / name)) {
      skip(name, "not there");
      return std::nullopt;
    }
    return SafetensorsFile::open(folder_ / name);
  }

  void logits(const fs::path& checkpoint, const std::string& name) {
    const auto file = open("logits.safetensors");
    if (!file) {
      return;
    }
    const at::Tensor ids = integers_of(*file, "input_ids");
    const at::Tensor mask = integers_of(*file, "attention_mask");
    if (mask.sizes() != ids.sizes()) {
      throw user_error("parity",
                       "{}: attention_mask has the shape {}, input_ids {}; make the reference anew",
                       file->path().string(), shape_text(mask.sizes()), shape_text(ids.sizes()));
    }
    const at::Tensor actual =
        engine(checkpoint, 1, 1.0, dtype_)->logits({.inputs = ids}).contiguous();
    const Expected expected(*file, "logits", static_cast<std::size_t>(actual.numel()));
    const float* values = actual.data_ptr<float>();
    const std::int64_t vocabulary = actual.size(2);
    Difference difference;
    for (std::int64_t position = 0; position < mask.numel(); ++position) {
      if (mask.data_ptr<std::int64_t>()[position] == 0) {
        continue;  // defined by nothing but the reference's own mask
      }
      for (std::int64_t i = position * vocabulary; i < (position + 1) * vocabulary; ++i) {
        const auto at = static_cast<std::size_t>(i);
        difference.add(values[i], expected.values[at], expected.limit(at));
      }
    }
    report(name, difference, "logits max abs", false);
  }

  void other_spelling() {
    const fs::path other = folder_ / "checkpoint" / "config.transformers5.json";
    if (!fs::exists(other)) {
      return;
    }
    const HfConfig b = read_hf_config(other);
    const HfConfig& a = config_;
    const bool same = a.vocab_size == b.vocab_size && a.hidden_size == b.hidden_size &&
                      a.rope == b.rope && a.window_rope == b.window_rope &&
                      a.attention_scale == b.attention_scale && a.windows == b.windows &&
                      a.norm_eps == b.norm_eps && a.num_hidden_layers == b.num_hidden_layers &&
                      a.head_dim == b.head_dim && a.intermediate_size == b.intermediate_size &&
                      a.tie_word_embeddings == b.tie_word_embeddings &&
                      a.pad_token_id == b.pad_token_id;
    failed_ |= !same;
    fmt::print("config spellings max_abs={} max_rel={} limit=0 {}\n", same ? 0 : 1, same ? 0 : 1,
               same ? "PASS" : "FAIL");
  }

  void gradients() {
    const auto file = open("grads.safetensors");
    if (!file) {
      return;
    }
    const auto trained = engine(folder_ / "checkpoint", 1, 0.0, dtype_);
    const Loss loss = trained->forward(
        {.inputs = integers_of(*file, "input_ids"), .labels = integers_of(*file, "labels")});
    trained->backward(loss);
    const Expected expected_loss(*file, "loss", 1);
    Difference loss_difference;
    loss_difference.add(loss.value, expected_loss.values[0], expected_loss.limit(0));
    report("loss", loss_difference, "loss abs", false);
    Worst worst;
    trained->for_each_gradient([&](const ParameterSpec& parameter, std::span<const float> values) {
      const Expected expected(*file, "grad." + parameter.name, values.size());
      Difference difference;
      for (std::size_t i = 0; i < expected.values.size(); ++i) {
        difference.add(values[i], expected.values[i], expected.limit(i));
      }
      worst.take(difference, parameter.name);
    });
    report("grads (worst " + worst.name + ")", worst.difference, "grads max rel to tensor", true);
  }

  void traces() {
    const auto batches = open("batches.safetensors");
    if (!batches || !fs::exists(folder_ / "losses.json")) {
      return;
    }
    const fs::path file = folder_ / "losses.json";
    const JsonDocument document =
        JsonDocument::load(file, {"parity", file.string(), "see --help for the format"}, 1 << 24);
    if (const auto deepspeed = document.root().find("deepspeed")) {
      optimizer_ = simdjson::minify(deepspeed->at("optimizer").raw());
    }
    for (const auto& [name, trace] : document.root().at("traces").members()) {
      run_trace(std::string(name), trace, *batches);
    }
  }

  void run_trace(const std::string& name, const JsonValue& trace, const SafetensorsFile& batches) {
    const std::string dtype = name == "bf16" ? "bf16" : "fp32";
    const ExpectedTrace reference(trace);
    const auto accumulation = static_cast<std::int64_t>(reference.losses.front().size());
    const auto trained =
        engine(folder_ / "checkpoint", accumulation, trace.at("gradient_clipping").number(), dtype);
    Difference loss_difference;
    Difference norm_difference;
    double norm_rel = 0;
    for (std::size_t step = 0; step < reference.losses.size(); ++step) {
      const auto limit_of = [step](const std::vector<double>& limits) {
        return limits.empty() ? std::nullopt : std::optional(limits[step]);
      };
      std::optional<StepResult> result;
      for (std::int64_t micro = 0; micro < accumulation; ++micro) {
        const std::vector<std::int64_t> at = {static_cast<std::int64_t>(step), micro};
        const Loss loss = trained->forward({.inputs = integers_of(batches, "tokens", at),
                                            .labels = integers_of(batches, "labels", at)});
        trained->backward(loss);
        result = trained->step();
        loss_difference.add(loss.value, reference.losses[step][static_cast<std::size_t>(micro)],
                            limit_of(reference.loss_limits));
      }
      const double norm = reference.norms[step];
      norm_difference.add(result->verdict.norm.value, norm, limit_of(reference.norm_limits));
      norm_rel = greater(std::abs(result->verdict.norm.value - norm) / norm, norm_rel);
    }
    const std::string trace_name = "trace " + name;
    report(trace_name + " loss", loss_difference,
           dtype == "bf16" ? "bf16 trace loss abs" : "trace loss abs", false);
    if (dtype != "bf16") {
      if (norm_difference.share) {
        report(trace_name + " grad_norm", norm_difference, "", true);
      } else {
        report(trace_name + " grad_norm", 0, norm_rel, "trace grad norm rel", true);
      }
      final_weights(name, *trained);
    }
  }

  void final_weights(const std::string& name, Engine& trained) {
    const auto file = open(("final_" + name + ".safetensors").c_str());
    if (!file) {
      return;
    }
    const CheckpointReader initial = CheckpointReader::open(folder_ / "checkpoint", config_);
    std::vector<std::pair<double, std::string>> rels;
    Worst worst;
    double worst_abs = 0;
    trained.for_each_parameter([&](const ParameterSpec& parameter, std::span<const float> values) {
      const Expected expected(*file, parameter.name, values.size());
      std::vector<float> before(expected.values.size());
      initial.read_f32(parameter.name, 0, static_cast<std::int64_t>(before.size()), before.data());
      const auto [free_begin, free_end] = without_gradient(parameter);
      Difference difference;
      double update = 0;
      for (std::size_t i = 0; i < expected.values.size(); ++i) {
        if (expected.limits.empty() && i >= free_begin && i < free_end) {
          continue;
        }
        difference.add(values[i], expected.values[i], expected.limit(i));
        update += std::pow(static_cast<double>(expected.values[i]) - before[i], 2);
      }
      worst.take(difference, parameter.name);
      worst_abs = greater(difference.abs, worst_abs);
      rels.emplace_back(std::sqrt(difference.squares / update), parameter.name);
    });
    const std::string prefix = "final weights " + name;
    if (worst.difference.share) {
      report(prefix + " (worst " + worst.name + ")", worst.difference, "", true);
      return;
    }
    std::ranges::sort(rels);
    report(prefix + " (worst " + rels.back().second + ")", worst_abs, rels.back().first,
           "final weights rel to update", true);
    report(prefix + " (median tensor)", worst_abs, rels[rels.size() / 2].first,
           "final weights median rel to update", true);
  }

  /// Elements whose gradient is mathematically zero, so that rounding noise alone moves them, which
  /// one limit for a whole check cannot say: the key third of GPT-2's fused attention bias (softmax
  /// does not see a shift common to all keys).
  [[nodiscard]] std::pair<std::size_t, std::size_t> without_gradient(
      const ParameterSpec& parameter) const {
    if (config_.model_type == "gpt2" && parameter.name.ends_with("attn.c_attn.bias")) {
      const auto third = static_cast<std::size_t>(parameter.numel() / 3);
      return {third, 2 * third};
    }
    return {0, 0};
  }

  fs::path folder_;
  std::string dtype_;
  HfConfig config_;
  std::string optimizer_ = R"({"type": "AdamW", "params": {"lr": 0.001, "betas": [0.9, 0.999],
                                                           "eps": 1e-8, "weight_decay": 0.01}})";
  std::map<std::string, double> limits_;
  bool without_limits_ = false;
  bool failed_ = false;
};

}  // namespace

int run_parity(int argc, char** argv) {
  std::string folder;
  std::string dtype = "fp32";
  CLI::App app(
      "Runs a checkpoint against the reference outputs beside it, without the config's dropout.",
      "tandem parity");
  app.add_option("DIR", folder, "Folder with checkpoint/ and reference outputs")->required();
  app.add_option("--dtype", dtype, "Compute type of logits and gradients: fp32 or bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  if (const auto exit_code = parse_command_line(app, argc, argv)) {
    return *exit_code;
  }
  return Parity(folder, dtype).run();
}

}  // namespace tandem
