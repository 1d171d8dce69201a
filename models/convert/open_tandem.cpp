#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "actors/storage/file.hpp"
#include "actors/storage/json.hpp"
#include "actors/storage/manifest.hpp"
#include "engine/checkpoint/checkpoint_layout.hpp"
#include "engine/checkpoint/run_state.hpp"
#include "models/convert/tandem_checkpoint.hpp"
#include "models/foreign/foreign_index.hpp"
#include "runtime/util/one_line.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhere = "import";
constexpr std::uint64_t kMostTextBytes = std::uint64_t{1} << 30;

// DeepSpeed itself puts these keys into a model file; all other keys are client state
// (tools/convert/module.py has the same list).
constexpr std::string_view kOwnKeys[] = {"module",
                                         "buffer_names",
                                         "optimizer",
                                         "param_shapes",
                                         "frozen_param_shapes",
                                         "shared_params",
                                         "frozen_param_fragments",
                                         "lr_scheduler",
                                         "data_sampler",
                                         "random_ltd",
                                         "sparse_tensor_module_names",
                                         "skipped_steps",
                                         "global_steps",
                                         "global_samples",
                                         "dp_world_size",
                                         "mp_world_size",
                                         "checkpoint_parallel_dimensions",
                                         "ds_config",
                                         "ds_version",
                                         "num_experts",
                                         "universal_checkpoint_info"};

bool is_deepspeed_key(std::string_view key) {
  return std::ranges::find(kOwnKeys, key) != std::end(kOwnKeys);
}

/// The array of Adam's that has that name; nothing: none.
std::optional<std::uint32_t> adams_array(std::string_view name) {
  for (std::uint32_t array = kMasterArray; array < kCheckpointArrays; ++array) {
    if (name == array_name(UpdateConfig{}, array)) {
      return array;
    }
  }
  return std::nullopt;
}

struct Place {
  std::shared_ptr<const SafetensorsFile> file;
  const TensorInfo* tensor = nullptr;

  [[nodiscard]] ImportedTensor::ReadF32 reader() const {
    return [place = *this](std::int64_t begin, std::int64_t end, float* out) {
      place.file->read_f32(*place.tensor, begin, end, out);
    };
  }
};

struct Arrays {
  std::vector<Place> masters;                                 // in the order of the files
  std::map<std::string, std::map<std::string, Place>> state;  // array -> tensor's name
};

Error wrong(const SafetensorsFile& file, const TensorInfo& tensor, std::string_view what) {
  return user_error(kWhere, "{}: tensor \"{}\" {}; use another checkpoint", file.path().string(),
                    one_line(tensor.name), what);
}

/// Files are called master-00001-of-00002.safetensors.
Arrays open_arrays(const fs::path& folder, const Manifest& manifest) {
  Arrays arrays;
  for (const ManifestFile& entry : manifest.files) {
    if (!entry.name.ends_with(".safetensors")) {
      continue;
    }
    const auto file =
        std::make_shared<const SafetensorsFile>(SafetensorsFile::open(folder / entry.name));
    const std::string array = entry.name.substr(0, entry.name.find('-'));
    for (const TensorInfo& tensor : file->tensors()) {
      if (!is_tensor_name(tensor.name)) {
        throw wrong(*file, tensor, "has a name that is none");
      }
      if (tensor.type != TensorType::kF32) {
        throw wrong(*file, tensor, fmt::format("is of type {}, not F32", name_of(tensor.type)));
      }
      if (adams_array(array) == kMasterArray) {
        arrays.masters.push_back({file, &tensor});
      } else if (!arrays.state[array].emplace(tensor.name, Place{file, &tensor}).second) {
        throw wrong(*file, tensor, "is there twice");
      }
    }
  }
  if (arrays.masters.empty()) {
    throw user_error(kWhere, "{} holds no master weights; use another checkpoint", folder.string());
  }
  return arrays;
}

void add_tensors(const Arrays& arrays, ImportedCheckpoint& out) {
  std::set<std::string_view> names;
  for (const Place& master : arrays.masters) {
    const TensorInfo& info = *master.tensor;
    if (!names.insert(info.name).second) {
      throw wrong(*master.file, info, "is there twice");
    }
    ImportedTensor tensor{.name = info.name, .shape = info.shape, .master = master.reader()};
    tensor.frozen = !arrays.state.empty();
    for (const auto& [array, places] : arrays.state) {
      const auto found = places.find(info.name);
      if (found == places.end()) {
        continue;
      }
      tensor.frozen = false;
      if (found->second.tensor->shape != info.shape) {
        throw wrong(*found->second.file, info,
                    fmt::format("is {}, its master weights {}",
                                shape_text(found->second.tensor->shape), shape_text(info.shape)));
      }
      if (const auto known = adams_array(array)) {
        tensor.moments[*known - 1] = found->second.reader();
      }
    }
    out.tensors.push_back(std::move(tensor));
  }
  for (const auto& [array, places] : arrays.state) {
    if (!adams_array(array)) {
      out.notes.push_back(fmt::format("{}: only Adam's moments are taken along", array));
    }
    for (const auto& [name, place] : places) {
      if (!names.contains(name)) {
        throw wrong(*place.file, *place.tensor, "has no master weights");
      }
    }
  }
}

/// The caller's keys, but those that DeepSpeed has itself.
void add_client_state(const JsonDocument& document, ImportedCheckpoint& out) {
  std::string json;
  if (!document.root().is_object()) {
    out.notes.emplace_back("the client state: it is no JSON object");
  } else {
    for (const auto& [key, value] : document.root().members()) {
      if (is_deepspeed_key(key)) {
        out.notes.push_back(fmt::format("client state \"{}\": DeepSpeed has this key itself", key));
        continue;
      }
      json += fmt::format("{}{}: {}", json.empty() ? "" : ", ", json_quote(key),
                          simdjson::minify(value.raw()));
    }
  }
  out.client_state_json = "{" + json + "}";
}

void add_counts(const RunState& state, ImportedCheckpoint& out) {
  out.global_steps = state.global_steps;
  out.skipped_steps = state.skipped_steps;
  out.optimizer_steps = state.applied_steps;
  if (__builtin_mul_overflow(state.micro_batches, state.micro_batch_size, &out.global_samples)) {
    throw user_error(kWhere, "{}: {} micro-batches of {} are too many; use another checkpoint",
                     out.path, state.micro_batches, state.micro_batch_size);
  }
  out.schedule_step = state.schedule_steps - 1;
  out.scaler = state.scaler;
  out.zero_stage = state.zero_stage;
  out.world_size = state.world_size;
  out.ds_config_json = state.config;
}

}  // namespace

ImportedCheckpoint open_tandem_checkpoint(const fs::path& folder) {
  const auto text_of = [&](std::string_view name) {
    return read_file(folder / name, kWhere, kMostTextBytes);
  };
  ImportedCheckpoint out{.kind = "tandem", .path = folder.string()};
  const Manifest manifest =
      Manifest::parse(text_of(kManifestName), (folder / kManifestName).string());
  if (manifest.slices) {
    throw user_error(kWhere, "{} has one host's slices of a checkpoint; gather those of all hosts",
                     folder.string());
  }
  const RunState state = RunState::parse(text_of(kStateFile), (folder / kStateFile).string());
  if (!state.base.empty()) {
    throw user_error(kWhere,
                     "{} has what was trained alone: {} parameters of the frozen base, {} among "
                     "them, are not in it; use the model or the adapter that the run has saved",
                     folder.string(), state.base.size(), state.base.front().first);
  }
  add_counts(state, out);
  add_client_state(
      JsonDocument::parse(text_of(kClientFile), {.where = std::string(kWhere),
                                                 .file = (folder / kClientFile).string(),
                                                 .advice = "use another checkpoint"}),
      out);
  add_tensors(open_arrays(folder, manifest), out);
  return out;
}

}  // namespace tandem
