#include "engine/checkpoint/run_state.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "actors/storage/json.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/json_writer.hpp"

namespace tandem {
namespace {

std::string text_of(std::optional<std::uint64_t> seed) { return seed ? std::to_string(*seed) : ""; }

bool is_known(const std::string& text) { return !text.empty(); }
bool is_known(std::int64_t count) { return count != 0; }

}  // namespace

std::string RunState::json() const {
  JsonWriter json(2);
  json.begin_object()
      .field("format", kFormat)
      .field("version", version)
      .field("step", global_steps)
      .field("applied_steps", applied_steps)
      .field("schedule_steps", schedule_steps)
      .field("skipped_steps", skipped_steps)
      .field("skipped_in_a_row", skipped_in_a_row)
      .field("next_micro_batch", micro_batches)
      .field("batches_taken", batches_taken)
      .field("epoch", epoch)
      .field("epoch_micro_batches", epoch_micro_batches)
      .field("speculation_history", lost_verdicts);
  json.key("loss_scaler");
  if (scaler) {
    json.begin_object()
        .field("scale", scaler->scale)
        .field("step", scaler->step)
        .field("last_overflow", scaler->last_overflow)
        .field("hysteresis", scaler->hysteresis)
        .end_object();
  } else {
    json.value(nullptr);
  }
  json.field("parameters", parameters)
      .field("optimizer", optimizer)
      .field("data_fingerprint", data)
      .field("seed", text_of(seed))
      .field("micro_batch_size", micro_batch_size)
      .field("step_micro_batches", step_micro_batches)
      .field("loss_mean", loss_mean)
      .field("world_size", world_size)
      .field("zero_stage", zero_stage)
      .field("precision", precision)
      .field("optimizer_state", state_layout);
  if (!base.empty()) {
    json.key("base").begin_object();
    for (const auto& [name, sum] : base) {
      json.field(name, fmt::format("{:016x}", sum));
    }
    json.end_object();
  }
  if (!settings.empty()) {
    json.key("settings").begin_object();
    for (const auto& [name, value] : settings) {
      json.field(name, value);
    }
    json.end_object();
  }
  json.key("config").raw(config.empty() ? "null" : config);
  return json.end_object().take() + "\n";
}

namespace {

// Beyond every run, and far from where sums and products of counts overflow.
constexpr std::int64_t kMostSteps = std::int64_t{1} << 40;
constexpr std::int64_t kMostBatches = std::int64_t{1} << 44;

std::optional<std::uint64_t> seed_in(const JsonValue& value) {
  const std::string_view text = value.string();
  if (text.empty()) {
    return std::nullopt;
  }
  std::uint64_t seed = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) {
    throw value.wrong("a whole number of at most 2^64 - 1, as text");
  }
  return seed;
}

std::uint64_t sum_in(const JsonValue& value) {
  const std::string_view text = value.string();
  std::uint64_t sum = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), sum, 16);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || text.size() != 16) {
    throw value.wrong("16 hexadecimal digits");
  }
  return sum;
}

/// The relations between the counts of every run, whatever it was resumed from.
void check_counts(const RunState& state, const JsonValue& root) {
  const auto at_most = [&](std::string_view key, std::int64_t value, std::int64_t most,
                           std::string_view what) {
    if (value > most) {
      throw root.at(key).error(fmt::format("is {}, and {} is {}", value, what, most));
    }
  };
  at_most("skipped_steps", state.skipped_steps, state.global_steps, "step");
  at_most("skipped_in_a_row", state.skipped_in_a_row, state.skipped_steps, "skipped_steps");
  const std::int64_t epoch =
      state.epoch_micro_batches > 0 ? state.batches_taken / state.epoch_micro_batches : 0;
  if (state.epoch != epoch) {
    throw root.at("epoch").error(
        fmt::format("is {}, and {} by batches_taken and "
                    "epoch_micro_batches",
                    state.epoch, epoch));
  }
}

}  // namespace

RunState RunState::parse(const std::string& text, const std::string& file) {
  const JsonDocument document = JsonDocument::parse(
      text,
      {"resume", file, "the checkpoint is damaged; use another one (./tandem checkpoint verify)"});
  const JsonValue root = document.root();
  if (const std::int64_t format = root.at("format").integer(0); format != kFormat) {
    throw user_error("resume",
                     "{} has format {}, and this version reads format {}; resume it with "
                     "the version that wrote it",
                     file, format, kFormat);
  }
  const auto steps = [&](std::string_view key) { return root.at(key).integer(0, kMostSteps); };
  const auto batches = [&](std::string_view key) { return root.at(key).integer(0, kMostBatches); };
  const auto word = [&](std::string_view key) { return std::string(root.at(key).string()); };
  RunState state{
      .global_steps = steps("step"),
      .applied_steps = steps("applied_steps"),
      .schedule_steps = steps("schedule_steps"),
      .skipped_steps = steps("skipped_steps"),
      .skipped_in_a_row = static_cast<int>(root.at("skipped_in_a_row").integer(0, 1 << 30)),
      .lost_verdicts =
          static_cast<std::uint16_t>(root.at("speculation_history").integer(0, 0xFFFF)),
      .micro_batches = batches("next_micro_batch"),
      .batches_taken = batches("batches_taken"),
      .epoch = batches("epoch"),
      .epoch_micro_batches = batches("epoch_micro_batches"),
      .parameters = word("parameters"),
      .optimizer = word("optimizer"),
      .data = word("data_fingerprint"),
      .micro_batch_size = batches("micro_batch_size"),
      .step_micro_batches = batches("step_micro_batches"),
      .world_size = static_cast<int>(root.at("world_size").integer(1, 1 << 20)),
      .zero_stage = static_cast<int>(root.at("zero_stage").integer(0, 3)),
      .precision = word("precision"),
      .state_layout = word("optimizer_state"),
      .version = word("version"),
      .config = {},
      .settings = {}};
  state.seed = seed_in(root.at("seed"));
  if (const auto mean = root.find("loss_mean")) {  // older checkpoints do not say
    state.loss_mean = mean->string();
  }
  if (const auto base = root.find("base")) {  // older checkpoints have all there is
    for (const auto& [name, sum] : base->members()) {
      state.base.emplace_back(name, sum_in(sum));
    }
  }
  if (const auto settings = root.find("settings")) {  // older checkpoints do not say
    for (const auto& [name, value] : settings->members()) {
      state.settings.emplace_back(name, value.string());
    }
  }
  if (const auto config = root.find("config")) {
    state.config = simdjson::minify(config->raw());
  }
  if (const auto scaler = root.find("loss_scaler")) {
    state.scaler = LossScaler::State{
        .scale = scaler->at("scale").number(),
        .step = scaler->at("step").integer(0, kMostSteps),
        .last_overflow = scaler->at("last_overflow").integer(-1, kMostSteps),
        .hysteresis = static_cast<int>(scaler->at("hysteresis").integer(0, 1 << 30))};
    if (!std::isfinite(state.scaler->scale) || state.scaler->scale <= 0) {
      throw scaler->at("scale").wrong("a number above 0");
    }
  }
  check_counts(state, root);
  return state;
}

void check_base(const RunState& saved, const RunState& now, const std::string& folder) {
  const std::map<std::string, std::uint64_t> sums(now.base.begin(), now.base.end());
  for (const auto& [name, sum] : saved.base) {
    const auto found = sums.find(name);
    if (found == sums.end()) {
      throw user_error("resume",
                       "{} was frozen in the run of {}, which has left it out, and is trained now; "
                       "freeze what was frozen there",
                       name, folder);
    }
    if (found->second != sum) {
      throw user_error("resume",
                       "{} of the base model has other values ({:016x}) than in the run of {} "
                       "({:016x}), which has trained beside them; give the base model that it was "
                       "begun with",
                       name, found->second, folder, sum);
    }
  }
}

std::vector<std::string> check_resume(const RunState& saved, const RunState& now,
                                      const LoadArgs& args, const std::string& folder) {
  std::vector<std::string> lines;
  const auto compare = [&](std::string_view part, std::string_view what, const auto& before,
                           const auto& after) {
    if (before == after) {
      return;
    }
    if (!is_known(before)) {
      lines.push_back(fmt::format("{}: not known in the checkpoint, {} now", what, after));
      return;
    }
    if (!part.empty() && std::ranges::find(args.ignored, part) != args.ignored.end()) {
      lines.push_back(
          fmt::format("{}: {} in the checkpoint, {} now (ignored)", what, before, after));
      return;
    }
    throw user_error("resume", "{} is {} in {} and {} now; {}", what, before, folder, after,
                     part.empty()
                         ? std::string("use the model that it was saved with")
                         : fmt::format("give the same, or --resume_ignore {} (of the engine: "
                                       "LoadArgs::ignored)",
                                       part));
  };
  compare("", "the parameter set", saved.parameters, now.parameters);
  compare("optimizer", "the optimizer", saved.optimizer, now.optimizer);
  compare("seed", "the seed", text_of(saved.seed), text_of(now.seed));
  compare("data",
          args.data_name.empty() ? std::string("the dataset's fingerprint")
                                 : fmt::format("the fingerprint of {}", args.data_name),
          saved.data, now.data);
  compare("batch", "the micro-batch size", saved.micro_batch_size, now.micro_batch_size);
  compare("batch", "micro-batches of a step", saved.step_micro_batches, now.step_micro_batches);
  if (is_known(saved.loss_mean)) {
    compare("batch", "what the loss is the mean of", saved.loss_mean, now.loss_mean);
  }
  const bool is_same_size = saved.micro_batch_size == now.micro_batch_size;
  compare(is_same_size ? "data" : "batch", "micro-batches of an epoch", saved.epoch_micro_batches,
          now.epoch_micro_batches);
  if (is_known(saved.state_layout) && saved.state_layout != now.state_layout) {
    lines.push_back(
        fmt::format("optimizer state: {} in the checkpoint, {} now: the same values, "
                    "rounded to that layout",
                    saved.state_layout, now.state_layout));
  }
  if (is_known(saved.precision) && saved.precision != now.precision) {
    lines.push_back(
        fmt::format("precision: {} in the checkpoint, {} now", saved.precision, now.precision));
  }
  return lines;
}

}  // namespace tandem
