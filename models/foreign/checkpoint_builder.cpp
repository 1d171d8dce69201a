#include "models/foreign/checkpoint_builder.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "actors/storage/json.hpp"
#include "models/foreign/flat_groups.hpp"
#include "models/foreign/pickle_json.hpp"

namespace tandem {
namespace {

using Kind = PickleValue::Kind;

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

bool is_nothing(const PickleValue* value) { return value == nullptr || value->is(Kind::kNone); }

const PickleValue& dict_of(const TorchFile& file, const PickleValue& dict, std::string_view key) {
  const PickleValue& value = member_of(file, dict, key);
  if (!value.is(Kind::kDict)) {
    throw file.error(fmt::format("its \"{}\" is no dict", key));
  }
  return value;
}

std::vector<std::int64_t> shape_of(const TorchFile& file, const PickleValue& size) {
  std::vector<std::int64_t> shape;
  std::int64_t numel = 1;
  for (const PickleValue* item : size.items) {
    if (!size.is(Kind::kTuple) || !item->is(Kind::kInt) || item->number < 0 ||
        __builtin_mul_overflow(numel, item->number, &numel)) {
      throw file.error("one of its shapes is none");
    }
    shape.push_back(item->number);
  }
  return shape;
}

std::vector<ListedParam> listed(const TorchFile& file, const PickleValue& dict) {
  std::vector<ListedParam> out;
  if (!dict.is(Kind::kDict)) {
    throw file.error("its parameters' shapes are no dict");
  }
  for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    ListedParam param{.name = std::string(dict.items[i]->text),
                      .shape = shape_of(file, *dict.items[i + 1])};
    param.numel = std::accumulate(param.shape.begin(), param.shape.end(), std::int64_t{1},
                                  std::multiplies<>());
    out.push_back(std::move(param));
  }
  return out;
}

}  // namespace

bool is_tensor_name(std::string_view name) {
  return !name.empty() && name.size() < 1024 && simdjson::validate_utf8(name.data(), name.size()) &&
         std::ranges::none_of(name, [](unsigned char c) { return c < ' ' || c == 0x7f; });
}

bool is_deepspeed_key(std::string_view key) {
  return std::ranges::find(kOwnKeys, key) != std::end(kOwnKeys);
}

const PickleValue& member_of(const TorchFile& file, const PickleValue& dict, std::string_view key) {
  const PickleValue* value = dict.find(key);
  if (value == nullptr) {
    throw file.error(fmt::format("it lacks \"{}\"", key));
  }
  return *value;
}

std::int64_t integer_of(const TorchFile& file, const PickleValue& dict, std::string_view key,
                        std::int64_t otherwise) {
  const PickleValue* value = dict.find(key);
  if (is_nothing(value)) {
    return otherwise;
  }
  if (!value->is(Kind::kInt)) {
    throw file.error(fmt::format("its \"{}\" is no integer", key));
  }
  return value->number;
}

std::optional<double> number_of(const TorchFile& file, const PickleValue* value) {
  if (value == nullptr) {
    return std::nullopt;
  }
  if (const TorchTensor* tensor = file.tensor(*value); tensor != nullptr && tensor->numel == 1) {
    float out = 0;
    file.read_f32(*tensor, 0, 1, &out);
    return out;
  }
  if (value->is(Kind::kInt)) {
    return static_cast<double>(value->number);
  }
  return value->is(Kind::kFloat) ? std::optional(value->real) : std::nullopt;
}

std::optional<std::int64_t> count_of(const TorchFile& file, const PickleValue* value) {
  const auto number = number_of(file, value);
  return number && *number >= 0 && *number < 1e15
             ? std::optional(static_cast<std::int64_t>(*number))
             : std::nullopt;
}

std::vector<std::vector<ListedParam>> read_param_shapes(const TorchFile& model) {
  const PickleValue* groups = model.root().find("param_shapes");
  std::vector<std::vector<ListedParam>> out;
  if (is_nothing(groups)) {
    return out;
  }
  if (groups->is(Kind::kDict)) {  // DeepSpeed before 0.5: one group
    out.push_back(listed(model, *groups));
    return out;
  }
  if (!groups->is(Kind::kList)) {
    throw model.error("its \"param_shapes\" is no list");
  }
  for (const PickleValue* group : groups->items) {
    out.push_back(listed(model, *group));
  }
  return out;
}

std::set<std::string_view> buffer_names_of(const TorchFile& model) {
  std::set<std::string_view> out;
  if (const PickleValue* names = model.root().find("buffer_names"); !is_nothing(names)) {
    for (const PickleValue* name : names->items) {
      out.insert(name->text);
    }
  }
  return out;
}

ImportedTensor::ReadF32 reader_of(std::shared_ptr<const TorchFile> file,
                                  const TorchTensor& tensor) {
  return [file = std::move(file), &tensor](std::int64_t begin, std::int64_t end, float* out) {
    file->read_f32(tensor, begin, end, out);
  };
}

CheckpointBuilder::CheckpointBuilder(std::string kind, const std::filesystem::path& path) {
  checkpoint_.kind = std::move(kind);
  checkpoint_.path = path.string();
}

bool CheckpointBuilder::has(std::string_view name) const {
  return place_.contains(std::string(name));
}

void CheckpointBuilder::add(ImportedTensor tensor, const TorchFile& file) {
  if (!is_tensor_name(tensor.name)) {
    throw file.error(fmt::format("\"{}\" is no name of a tensor", printable(tensor.name)));
  }
  if (!place_.emplace(tensor.name, checkpoint_.tensors.size()).second) {
    throw file.error(fmt::format("tensor \"{}\" is there twice", printable(tensor.name)));
  }
  checkpoint_.tensors.push_back(std::move(tensor));
}

void CheckpointBuilder::add_stored(const PickleValue& name,
                                   const std::shared_ptr<const TorchFile>& file,
                                   const TorchTensor& tensor, bool frozen, bool buffer) {
  ImportedTensor out{.name = std::string(name.text),
                     .shape = tensor.shape,
                     .type = tensor.type,
                     .frozen = frozen || buffer,
                     .buffer = buffer,
                     .master = reader_of(file, tensor)};
  if (tensor.type != TensorType::kF32) {
    out.stored = [file, &tensor](std::int64_t begin, std::int64_t end, std::span<std::byte> bytes) {
      file->read_stored(tensor, begin, end, bytes);
    };
  }
  add(std::move(out), *file);
}

void CheckpointBuilder::tie(const std::string& alias, const std::string& name) {
  if (alias != name && !has(alias)) {
    checkpoint_.tied.emplace(alias, name);
  }
}

void CheckpointBuilder::read_common(const TorchFile& model) {
  const PickleValue& root = model.root();
  ImportedCheckpoint& out = checkpoint_;
  out.global_steps = integer_of(model, root, "global_steps", 0);
  out.skipped_steps = integer_of(model, root, "skipped_steps", 0);
  out.global_samples = integer_of(model, root, "global_samples", 0);
  out.world_size = static_cast<int>(integer_of(model, root, "dp_world_size", 1));
  out.optimizer_steps = out.global_steps - out.skipped_steps;
  if (integer_of(model, root, "mp_world_size", 1) != 1) {
    throw user_error("import",
                     "{} was saved under tensor or pipeline parallelism, which is not read; gather "
                     "it with DeepSpeed first",
                     model.path().string());
  }
  if (const PickleValue* schedule = root.find("lr_scheduler"); !is_nothing(schedule)) {
    if (const PickleValue* last = schedule->find("last_batch_iteration");
        last != nullptr && last->is(Kind::kInt)) {
      out.schedule_step = last->number;
    } else if (last = schedule->find("last_epoch"); last != nullptr && last->is(Kind::kInt)) {
      out.schedule_step = last->number - 1;  // torch's schedulers begin at 0, DeepSpeed's at -1
    } else {
      out.notes.emplace_back("the state of a learning rate scheduler of an unknown kind");
    }
  }
  if (const PickleValue* version = root.find("ds_version");
      version != nullptr && is_plain_text(*version)) {
    out.ds_version = printable(version->text);
  }
  if (const PickleValue* config = root.find("ds_config"); !is_nothing(config)) {
    if (auto json = json_of(*config)) {
      out.ds_config_json = std::move(*json);
    } else {
      out.notes.emplace_back("ds_config: it is no plain data");
    }
  }
  read_client_state(model);
}

void CheckpointBuilder::read_client_state(const TorchFile& model) {
  const auto& items = model.root().items;
  std::string json;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (is_deepspeed_key(items[i]->text)) {
      continue;
    }
    const auto value = is_plain_text(*items[i]) ? json_of(*items[i + 1]) : std::nullopt;
    if (value) {
      json += fmt::format("{}{}: {}", json.empty() ? "" : ", ", json_quote(items[i]->text), *value);
    } else {
      checkpoint_.notes.push_back(
          fmt::format("client state \"{}\": it is no plain data", printable(items[i]->text)));
    }
  }
  checkpoint_.client_state_json = "{" + json + "}";
}

void CheckpointBuilder::read_scaler(const TorchFile& file, const PickleValue* scaler) {
  if (scaler == nullptr || !scaler->is(Kind::kObject) || scaler->items.size() != 1) {
    return;
  }
  const PickleValue& fields = *scaler->items[0];
  const PickleValue* dynamic = fields.find("dynamic");
  const double scale = number_of(file, fields.find("cur_scale")).value_or(1);
  if (scale == 1 && (dynamic == nullptr || dynamic->number == 0)) {
    return;
  }
  checkpoint_.scaler =
      LossScaleState{.scale = scale,
                     .step = integer_of(file, fields, "cur_iter", 0),
                     .last_overflow = integer_of(file, fields, "last_overflow_iter", -1),
                     .hysteresis = static_cast<int>(integer_of(file, fields, "cur_hysteresis", 1))};
}

void CheckpointBuilder::finish_module(const TorchFiles& models, int stage) {
  add_shared(*models[0]);
  if (stage == 3) {
    add_fragments(models);
  }
  add_rest(models[0], stage);
  order_as(dict_of(*models[0], models[0]->root(), "module"));
}

void CheckpointBuilder::add_shared(const TorchFile& model) {
  const PickleValue* shared = model.root().find("shared_params");
  if (is_nothing(shared)) {
    return;
  }
  for (std::size_t i = 0; i + 1 < shared->items.size(); i += 2) {
    const std::string alias(shared->items[i]->text);
    const std::string name(shared->items[i + 1]->text);
    if (has(name)) {
      tie(alias, name);
    } else if (has(alias)) {
      tie(name, alias);
    }
  }
}

/// Stage 3 keeps a frozen parameter in pieces, too: a part of each rank's file.
void CheckpointBuilder::add_fragments(const TorchFiles& models) {
  const PickleValue* shapes = models[0]->root().find("frozen_param_shapes");
  if (is_nothing(shapes) || shapes->items.empty()) {
    return;
  }
  for (const ListedParam& param : listed(*models[0], *shapes)) {
    auto pieces = std::make_shared<FlatGroup>();
    TensorType type = TensorType::kF32;
    for (const auto& model : models) {
      const PickleValue& fragments = dict_of(*model, model->root(), "frozen_param_fragments");
      const TorchTensor* piece = model->tensor(member_of(*model, fragments, param.name));
      if (piece == nullptr) {
        throw model->error(fmt::format("its piece of \"{}\" is no tensor", param.name));
      }
      type = piece->type;
      pieces->add_rank().add(model, *piece);
    }
    const std::int64_t part = part_of(param.numel, models.size());
    pieces->require(part, *models[0], param.name);
    add({.name = param.name,
         .shape = param.shape,
         .type = type,
         .frozen = true,
         .master = partitioned_reader(std::move(pieces), 0, part)},
        *models[0]);
  }
}

/// Adds what the module holds besides trained parameters: buffers, and below stage 3 the frozen
/// parameters and, where older versions do not list them, the tied names.
void CheckpointBuilder::add_rest(const std::shared_ptr<const TorchFile>& model, int stage) {
  const PickleValue& module = dict_of(*model, model->root(), "module");
  const std::set<std::string_view> buffers = buffer_names_of(*model);
  // By what no two tensors share that are not the same memory.
  std::multimap<std::pair<std::size_t, std::int64_t>, std::pair<const TorchTensor*, std::string>>
      known;
  const auto learn = [&](const TorchTensor& tensor, std::string_view name) {
    if (tensor.numel > 0) {
      known.emplace(std::pair(tensor.storage, tensor.offset), std::pair(&tensor, name));
    }
  };
  for (std::size_t i = 0; i + 1 < module.items.size(); i += 2) {
    const TorchTensor* tensor = model->tensor(*module.items[i + 1]);
    if (tensor != nullptr && has(module.items[i]->text)) {
      learn(*tensor, module.items[i]->text);
    }
  }
  for (std::size_t i = 0; i + 1 < module.items.size(); i += 2) {
    const PickleValue& name = *module.items[i];
    const TorchTensor* tensor = model->tensor(*module.items[i + 1]);
    const bool buffer = buffers.contains(name.text);
    if (has(name.text) || checkpoint_.tied.contains(std::string(name.text))) {
      continue;
    }
    if (tensor == nullptr || (stage == 3 && !buffer)) {
      checkpoint_.notes.push_back(
          fmt::format("module state \"{}\": {}", printable(name.text),
                      tensor == nullptr ? "it is no tensor" : "its pieces were not saved"));
      continue;
    }
    const auto [first, last] = known.equal_range({tensor->storage, tensor->offset});
    const auto same = std::find_if(
        first, last, [&](const auto& other) { return *other.second.first == *tensor && !buffer; });
    if (same != last) {
      tie(std::string(name.text), same->second.second);
      continue;
    }
    add_stored(name, model, *tensor, true, buffer);
    learn(*tensor, name.text);
  }
}

/// round_robin_gradients and parameter groups list the parameters in another order than the module.
void CheckpointBuilder::order_as(const PickleValue& module) {
  std::unordered_map<std::string_view, std::size_t> rank;
  for (std::size_t i = 0; i + 1 < module.items.size(); i += 2) {
    rank.emplace(module.items[i]->text, i);
  }
  const auto rank_of = [&](const ImportedTensor& tensor) {
    const auto found = rank.find(tensor.name);
    return std::pair(found == rank.end() ? module.items.size() : found->second,
                     std::string_view(tensor.name));
  };
  std::ranges::sort(checkpoint_.tensors, {}, rank_of);
  for (std::size_t i = 0; i < checkpoint_.tensors.size(); ++i) {
    place_[checkpoint_.tensors[i].name] = i;
  }
}

}  // namespace tandem
