#include "engine/checkpoint/checkpoint_layout.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "runtime/util/json_writer.hpp"

namespace tandem {

namespace {

constexpr std::string_view kMaster = "master";

/// Adds the files of one array, and what of them this rank writes.
class ArrayFiles {
 public:
  ArrayFiles(const RankLayout& layout, std::uint32_t array, CheckpointLayout& into)
      : layout_(layout), array_(array), into_(into), first_(into.files.size()) {}

  void add_unit(std::size_t unit) {
    const UnitSpec& spec = layout_.model.units[unit];
    std::uint64_t bytes = 0;
    for (const ParameterSpec& parameter : spec.parameters) {
      bytes += layout_.has_array(parameter, array_) ? bytes_of(parameter) : 0;
    }
    if (bytes == 0) {
      return;
    }
    if (into_.files.size() == first_ || data_bytes_ + bytes > CheckpointLayout::kMostFileBytes) {
      into_.files.emplace_back();
      data_bytes_ = 0;
    }
    for (std::size_t i = 0; i < spec.parameters.size(); ++i) {
      if (const ParameterSpec& parameter = spec.parameters[i];
          layout_.has_array(parameter, array_)) {
        add_piece(unit, i);
        into_.files.back().tensors.push_back(
            {.name = parameter.name, .type = TensorType::kF32, .shape = parameter.shape});
        data_bytes_ += bytes_of(parameter);
      }
    }
  }

  void name_files(std::string_view array) {
    name_array_files(std::span(into_.files).subspan(first_), array);
  }

 private:
  static std::uint64_t bytes_of(const ParameterSpec& parameter) {
    return static_cast<std::uint64_t>(parameter.numel()) * sizeof(float);
  }

  /// What of a parameter lies in this rank's slice of its unit. What every rank has is written by
  /// one of them, each unit by the next one.
  void add_piece(std::size_t unit, std::size_t parameter) {
    const UnitSpec& spec = layout_.model.units[unit];
    const Sharding& sharding = layout_.sharding;
    if (!sharding.is_sharded(spec) && unit % sharding.world != sharding.rank) {
      return;
    }
    const auto slice_begin = static_cast<std::int64_t>(layout_.slice_begin(unit));
    const auto slice_end = slice_begin + static_cast<std::int64_t>(layout_.slice_elements(unit));
    const std::int64_t offset = layout_.parameters[unit].offsets[parameter];
    const std::int64_t begin = std::max(offset, slice_begin);
    const std::int64_t end = std::min(offset + spec.parameters[parameter].numel(), slice_end);
    if (begin >= end) {
      return;
    }
    into_.units[unit].pieces.push_back(
        {.file = static_cast<std::uint32_t>(into_.files.size() - 1),
         .data_offset = data_bytes_ + static_cast<std::uint64_t>(begin - offset) * sizeof(float),
         .array = array_,
         .begin = static_cast<std::size_t>(begin - slice_begin),
         .end = static_cast<std::size_t>(end - slice_begin)});
  }

  const RankLayout& layout_;
  std::uint32_t array_;
  CheckpointLayout& into_;
  std::size_t first_;
  std::uint64_t data_bytes_ = 0;  // of the last file so far
};

}  // namespace

void name_array_files(std::span<PlannedFile> files, std::string_view array) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    files[i].name = fmt::format("{}-{:05}-of-{:05}.safetensors", array, i + 1, files.size());
  }
}

std::string_view array_name(const UpdateConfig& optimizer, std::uint32_t array) {
  if (array == kMasterArray) {
    return kMaster;
  }
  switch (optimizer.kind) {
    case OptimizerKind::kSgd:
      return "momentum_buffer";
    case OptimizerKind::kAdagrad:
      return "sum";
    case OptimizerKind::kAdam:
    case OptimizerKind::kLion:
    case OptimizerKind::kLamb:
    case OptimizerKind::kMuon:  // its momentum is an average, too
      break;
  }
  return array == 1 ? "exp_avg" : "exp_avg_sq";
}

CheckpointLayout CheckpointLayout::of(const RankLayout& layout) {
  CheckpointLayout made;
  const std::vector<UnitSpec>& units = layout.model.units;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    made.units.push_back({.pieces = {},
                          .elements = layout.slice_elements(unit),
                          .is_updated = !layout.update_ranges(unit).empty()});
  }
  const auto arrays = static_cast<std::uint32_t>(1 + state_arrays(layout.shape.update));
  for (std::uint32_t array = kMasterArray; array < arrays; ++array) {
    ArrayFiles files(layout, array, made);
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      files.add_unit(unit);
    }
    files.name_files(array_name(layout.shape.update, array));
  }
  return made;
}

std::string CheckpointLayout::index_json() const {
  std::int64_t total = 0;
  JsonWriter json(2);
  json.begin_object().key("weight_map").begin_object();
  for (const PlannedFile& file : files) {
    if (!file.name.starts_with(kMaster)) {
      continue;
    }
    for (const TensorPlan& tensor : file.tensors) {
      json.field(tensor.name, file.name);
      total += static_cast<std::int64_t>(tensor.size_bytes());
    }
  }
  json.end_object();
  json.key("metadata").begin_object().field("total_size", total).end_object();
  return json.end_object().take() + "\n";
}

std::size_t CheckpointLayout::largest_unit_bytes() const {
  std::size_t largest = 0;
  for (const CheckpointWriter::Unit& unit : units) {
    std::size_t elements = 0;
    for (const CheckpointPiece& piece : unit.pieces) {
      elements += piece.end - piece.begin;
    }
    largest = std::max(largest, elements * sizeof(float));
  }
  return largest;
}

}  // namespace tandem
