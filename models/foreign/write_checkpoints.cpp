#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "actors/storage/file.hpp"
#include "actors/storage/json.hpp"
#include "engine/config/config.hpp"
#include "models/foreign/imported_checkpoint.hpp"
#include "models/foreign/torch_writer.hpp"
#include "models/io/weights_writer.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhere = "convert";
constexpr std::int64_t kPieceElements = 1 << 20;
constexpr std::array kKinds = {"fp32", "exp_avg", "exp_avg_sq"};
constexpr double kUniversalVersion = 0.4;
// DeepSpeed takes as many groups as its run has, and nothing out of them but what they name.
constexpr int kMostGroups = 16;
constexpr std::string_view kDeepSpeedVersion = "0.19.8";  // where the checkpoint names none

bool is_trained(const ImportedTensor& tensor) { return !tensor.frozen; }

/// {key: value(), ...} in the pickle, for the keys that are texts.
class Dict {
 public:
  explicit Dict(PickleText& out) : out_(out) { out_.begin_dict(); }
  Dict(const Dict&) = delete;
  Dict& operator=(const Dict&) = delete;
  ~Dict() { out_.end_dict(); }

  PickleText& operator[](std::string_view key) {
    out_.text(key);
    return out_;
  }

 private:
  PickleText& out_;
};

std::optional<JsonDocument> parse_json(const std::string& json, std::string_view what) {
  if (json.empty()) {
    return std::nullopt;
  }
  return JsonDocument::parse(json, {.where = std::string(kWhere),
                                    .file = std::string(what),
                                    .advice = "this is a bug, please report it"});
}

bool uses_torch_adam(const ImportedCheckpoint& checkpoint) {
  const auto config = parse_json(checkpoint.ds_config_json, "ds_config");
  std::optional<JsonValue> at =
      config && config->root().is_object() ? std::optional(config->root()) : std::nullopt;
  for (const char* key : {"optimizer", "params"}) {
    at = at ? at->find(key) : std::nullopt;
    at = at && at->is_object() ? at : std::nullopt;
  }
  const auto flag = at ? at->find("torch_adam") : std::nullopt;
  return flag && flag->text() == "true";
}

/// torch's own Adam counts in a tensor, DeepSpeed's in an integer.
void append_step(PickleText& out, const ImportedCheckpoint& checkpoint) {
  if (!uses_torch_adam(checkpoint)) {
    out.integer(checkpoint.optimizer_steps);
    return;
  }
  out.tensor(f32_source({}, [step = static_cast<float>(checkpoint.optimizer_steps)](
                                std::int64_t, std::int64_t, float* value) { *value = step; }));
}

/// The rate of the run's next step by the schedule of its config, which DeepSpeed takes from the
/// groups for the first step after a load. Nothing without a schedule: then it is the config's.
std::optional<double> next_rate(const ImportedCheckpoint& checkpoint) {
  if (checkpoint.ds_config_json.empty() || !checkpoint.schedule_step) {
    return std::nullopt;
  }
  try {
    const Config config =
        parse_config(checkpoint.ds_config_json, "ds_config", std::max(checkpoint.world_size, 1));
    if (config.schedule.type == ScheduleType::kConstant) {
      return std::nullopt;
    }
    // last_batch_iteration is 0 after the first step.
    return LrSchedule(config.schedule, config.optimizer.lr).lr_at(*checkpoint.schedule_step + 2);
  } catch (const Error&) {  // a config that only DeepSpeed trains with
    return std::nullopt;
  }
}

void append_groups(PickleText& out, std::optional<double> rate) {
  out.begin_list();
  for (int i = 0; i < kMostGroups; ++i) {
    Dict group(out);
    group["params"].begin_list();
    out.end_list();
    if (rate) {
      group["lr"].real(*rate);
    }
  }
  out.end_list();
}

void append_version(PickleText& out, const ImportedCheckpoint& checkpoint) {
  out.text(checkpoint.ds_version.empty() ? kDeepSpeedVersion : checkpoint.ds_version);
}

void write_tensor(const ImportedCheckpoint& checkpoint, const ImportedTensor& tensor,
                  const fs::path& folder) {
  make_writable_folder(folder, kWhere);
  const std::array readers = {tensor.master, tensor.moments[0], tensor.moments[1]};
  for (std::size_t kind = 0; kind < readers.size(); ++kind) {
    if (!readers[kind]) {
      continue;
    }
    PickleText out;
    {
      Dict dict(out);
      dict["param"].tensor(f32_source(tensor.shape, readers[kind]));
      dict["cat_dim"].integer(0);
    }
    write_torch_file(folder / fmt::format("{}.pt", kKinds[kind]), out);
  }
  PickleText step;
  append_step(step, checkpoint);
  write_torch_file(folder / "step.pt", step);
}

/// Writes the state that belongs to no parameter. The loss scaler is not in it: it is an object of
/// DeepSpeed's, and this file shall be one that torch reads without executing anything.
void write_optimizer_state(const ImportedCheckpoint& checkpoint, const fs::path& path) {
  const std::optional<double> rate = next_rate(checkpoint);
  PickleText out;
  {
    Dict dict(out);
    dict["zero_stage"].integer(std::max(checkpoint.zero_stage, 1));
    append_version(dict["ds_version"], checkpoint);
    append_groups(dict["param_groups"], rate);
    PickleText& inner = dict["optimizer_state_dict"];  // where stage 3 looks
    Dict state(inner);
    state["state"].begin_dict();
    out.integer(0);
    {
      Dict first(out);
      append_step(first["step"], checkpoint);
    }
    out.end_dict();
    append_groups(state["param_groups"], rate);
  }
  write_torch_file(path, out);
}

void append_module(Dict& dict, PickleText& out, const ImportedCheckpoint& checkpoint) {
  dict["module"].begin_ordered_dict();
  for (const ImportedTensor& tensor : checkpoint.tensors) {
    if (!is_trained(tensor)) {
      out.text(tensor.name);
      out.tensor(stored_source(tensor));
    }
  }
  out.end_dict();
  dict["buffer_names"].begin_list();
  for (const ImportedTensor& tensor : checkpoint.tensors) {
    if (tensor.buffer) {
      out.text(tensor.name);
    }
  }
  out.end_list();
  dict["param_shapes"].begin_list();
  out.begin_ordered_dict();
  for (const ImportedTensor& tensor : checkpoint.tensors) {
    if (is_trained(tensor)) {
      out.text(tensor.name);
      out.size(tensor.shape);
    }
  }
  out.end_dict();
  out.end_list();
  Dict shared(dict["shared_params"]);
  for (const auto& [alias, name] : checkpoint.tied) {
    shared[alias].text(name);
  }
}

void write_model_states(const ImportedCheckpoint& checkpoint, const fs::path& path) {
  const auto config = parse_json(checkpoint.ds_config_json, "ds_config");
  const auto client = parse_json(checkpoint.client_state_json, "the client state");
  PickleText out;
  {
    Dict dict(out);
    append_module(dict, out, checkpoint);
    for (const char* key :
         {"optimizer", "frozen_param_shapes", "frozen_param_fragments", "data_sampler"}) {
      dict[key].none();
    }
    PickleText& schedule = dict["lr_scheduler"];
    if (checkpoint.schedule_step) {
      Dict(schedule)["last_batch_iteration"].integer(*checkpoint.schedule_step);
    } else {
      schedule.none();
    }
    dict["skipped_steps"].integer(checkpoint.skipped_steps);
    dict["global_steps"].integer(checkpoint.global_steps);
    dict["global_samples"].integer(checkpoint.global_samples);
    dict["dp_world_size"].integer(std::max(checkpoint.world_size, 1));
    dict["mp_world_size"].integer(1);
    if (config) {
      dict["ds_config"].json(config->root());
    }
    append_version(dict["ds_version"], checkpoint);
    Dict(dict["universal_checkpoint_info"])["universal_checkpoint_version"].real(kUniversalVersion);
    if (client) {
      for (const auto& [key, value] : client->root().members()) {
        dict[key].json(value);
      }
    }
  }
  write_torch_file(path, out);
}

}  // namespace

void write_universal(const ImportedCheckpoint& checkpoint, const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder, ignored) && !fs::is_empty(folder, ignored)) {
    throw user_error(kWhere, "{} is not empty; choose a new folder", folder.string());
  }
  for (const ImportedTensor& tensor : checkpoint.tensors) {
    if (tensor.name.find('/') != std::string::npos || tensor.name.starts_with('.')) {
      throw user_error(kWhere,
                       "tensor \"{}\" cannot be the name of a folder, which a universal "
                       "checkpoint makes of it; rename it",
                       tensor.name);
    }
  }
  const fs::path zero = folder / "zero";
  make_writable_folder(zero, kWhere);
  for (const ImportedTensor& tensor : checkpoint.tensors) {
    if (is_trained(tensor)) {
      write_tensor(checkpoint, tensor, zero / tensor.name);
    }
  }
  write_optimizer_state(checkpoint, zero / "optimizer_state.pt");
  // Below stage 3 DeepSpeed looks for the first name, at stage 3 for the second.
  for (const char* name :
       {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"}) {
    write_model_states(checkpoint, folder / name);
  }
  const fs::path absolute = fs::absolute(folder).lexically_normal();
  const fs::path named = absolute.has_filename() ? absolute : absolute.parent_path();
  write_file(named.parent_path() / "latest_universal", kWhere, named.filename().string());
}

void write_hugging_face(const ImportedCheckpoint& checkpoint, const fs::path& folder,
                        std::optional<TensorType> type) {
  std::vector<TensorPlan> plans;
  plans.reserve(checkpoint.tensors.size());
  for (const ImportedTensor& tensor : checkpoint.tensors) {
    plans.push_back({.name = tensor.name,
                     .type = type && is_float(tensor.type) ? *type : tensor.type,
                     .shape = tensor.shape});
  }
  make_writable_folder(folder, kWhere);
  WeightsWriter writer(folder, plans);
  std::vector<float> values;
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const ImportedTensor& tensor = checkpoint.tensors[i];
    const bool as_stored = tensor.stored && plans[i].type == tensor.type;
    for (std::int64_t begin = 0; begin < tensor.numel(); begin += kPieceElements) {
      const std::int64_t end = std::min(begin + kPieceElements, tensor.numel());
      const auto count = static_cast<std::size_t>(end - begin);
      if (as_stored) {
        bytes.resize(count * bytes_of(tensor.type));
        tensor.stored(begin, end, bytes);
        writer.append(bytes);
      } else {
        values.resize(count);
        tensor.master(begin, end, values.data());
        writer.append_f32(values);
      }
    }
  }
  writer.finish();
}

}  // namespace tandem
