#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "actors/storage/file.hpp"
#include "engine/config/config.hpp"
#include "models/foreign/converter.hpp"
#include "models/foreign/imported_checkpoint.hpp"
#include "models/io/weights_writer.hpp"
#include "runtime/util/json_writer.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhere = "convert";
constexpr std::int64_t kPieceElements = 1 << 20;

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

/// Everything but the elements, as one line of JSON.
std::string plan_of(const ImportedCheckpoint& checkpoint) {
  JsonWriter out;
  out.begin_object();
  for (const auto& [key, number] :
       {std::pair("global_steps", checkpoint.global_steps),
        std::pair("skipped_steps", checkpoint.skipped_steps),
        std::pair("optimizer_steps", checkpoint.optimizer_steps),
        std::pair("global_samples", checkpoint.global_samples),
        std::pair("zero_stage", std::int64_t{std::max(checkpoint.zero_stage, 1)}),
        std::pair("world_size", std::int64_t{std::max(checkpoint.world_size, 1)})}) {
    out.field(key, number);
  }
  if (checkpoint.schedule_step) {
    out.field("schedule_step", *checkpoint.schedule_step);
  }
  if (const auto rate = next_rate(checkpoint)) {
    out.field("next_rate", *rate);
  }
  out.field("ds_version", checkpoint.ds_version);
  out.field("ds_config", checkpoint.ds_config_json);
  out.field("client_state", checkpoint.client_state_json);
  out.key("tied").begin_object();
  for (const auto& [alias, name] : checkpoint.tied) {
    out.field(alias, name);
  }
  out.end_object().key("tensors").begin_array();
  for (const ImportedTensor& tensor : checkpoint.tensors) {
    out.begin_object().field("name", tensor.name).field("shape", tensor.shape);
    out.field("type", name_of(tensor.type)).field("frozen", tensor.frozen);
    out.field("buffer", tensor.buffer).key("arrays").begin_array();
    out.value(static_cast<bool>(tensor.master));
    for (const ImportedTensor::ReadF32& moment : tensor.moments) {
      out.value(static_cast<bool>(moment));
    }
    out.end_array().end_object();
  }
  out.end_array().end_object();
  return out.take() + "\n";
}

void send_f32(Converter& to, std::int64_t numel, const ImportedTensor::ReadF32& read) {
  std::vector<float> values;
  for (std::int64_t begin = 0; begin < numel; begin += kPieceElements) {
    const std::int64_t end = std::min(begin + kPieceElements, numel);
    values.resize(static_cast<std::size_t>(end - begin));
    read(begin, end, values.data());
    to.write(std::as_bytes(std::span(values)));
  }
}

/// A tensor's stored elements, or else its fp32 values in its type.
void send_stored(Converter& to, const ImportedTensor& tensor) {
  std::vector<float> values;
  std::vector<std::byte> bytes;
  for (std::int64_t begin = 0; begin < tensor.numel(); begin += kPieceElements) {
    const std::int64_t end = std::min(begin + kPieceElements, tensor.numel());
    bytes.resize(static_cast<std::size_t>(end - begin) * bytes_of(tensor.type));
    if (tensor.stored) {
      tensor.stored(begin, end, bytes);
    } else {
      values.resize(static_cast<std::size_t>(end - begin));
      tensor.master(begin, end, values.data());
      convert_from_f32(tensor.type, values, bytes);
    }
    to.write(bytes);
  }
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
  make_writable_folder(folder, kWhere);
  Converter writer({"write", folder.string()});
  const std::string plan = plan_of(checkpoint);
  writer.write(std::as_bytes(std::span(plan)));
  for (const ImportedTensor& tensor : checkpoint.tensors) {
    for (const auto* read : {&tensor.master, &tensor.moments[0], &tensor.moments[1]}) {
      if (!tensor.frozen && *read) {
        send_f32(writer, tensor.numel(), *read);
      }
    }
  }
  for (const ImportedTensor& tensor : checkpoint.tensors) {
    if (tensor.frozen) {
      send_stored(writer, tensor);
    }
  }
  if (writer.finish() != "written\n") {
    throw writer.not_taken();
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
