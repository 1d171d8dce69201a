#include "engine/checkpoint/checkpoint_layout.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "runtime/util/check.hpp"
#include "runtime/util/json_writer.hpp"

namespace tandem {

namespace {

constexpr std::string_view kMaster = "master";

/// Adds the files of one array, and what of them this rank writes.
class ArrayFiles {
 public:
  ArrayFiles(const RankLayout& layout, std::span<const std::uint32_t> ranks, std::uint32_t array,
             CheckpointLayout& into)
      : layout_(layout), ranks_(ranks), array_(array), into_(into), first_(into.files.size()) {}

  void add_unit(std::size_t unit) {
    const UnitSpec& spec = layout_.model.units[unit];
    std::uint64_t bytes = 0;
    for (const ParameterSpec& parameter : spec.parameters) {
      bytes += layout_.has_array(parameter, array_) ? bytes_of(parameter.numel()) : 0;
    }
    if (bytes == 0) {
      return;
    }
    const bool is_full = whole_bytes_ + bytes > CheckpointLayout::kMostFileBytes;
    const bool is_off_blocks =
        bytes >= CheckpointLayout::kOwnFileBytes && whole_bytes_ % FileIo::kDirectAlignment != 0;
    if (into_.files.size() == first_ || is_full || is_off_blocks) {
      into_.files.emplace_back();
      into_.whole.emplace_back();
      whole_bytes_ = 0;
      data_bytes_ = 0;
    }
    whole_bytes_ += bytes;
    for (std::size_t i = 0; i < spec.parameters.size(); ++i) {
      if (layout_.has_array(spec.parameters[i], array_)) {
        add_parameter(unit, i);
      }
    }
  }

  void name_files(std::string_view array) {
    name_array_files(std::span(into_.files).subspan(first_), array);
    name_array_files(std::span(into_.whole).subspan(first_), array);
  }

 private:
  static std::uint64_t bytes_of(std::int64_t elements) {
    return static_cast<std::uint64_t>(elements) * sizeof(float);
  }

  void add_parameter(std::size_t unit, std::size_t parameter) {
    const ParameterSpec& spec = layout_.model.units[unit].parameters[parameter];
    const TensorPlan whole{.name = spec.name, .type = TensorType::kF32, .shape = spec.shape};
    into_.whole.back().tensors.push_back(whole);
    if (ranks_.empty()) {
      add_piece(unit, parameter, 0);
      into_.files.back().tensors.push_back(whole);
      data_bytes_ += bytes_of(spec.numel());
      return;
    }
    for (const ElementRun& run : runs_of(unit, parameter)) {
      const ElementRun kept = kept_by(layout_, layout_.sharding.rank, unit, parameter);
      if (run.begin <= kept.begin && kept.end <= run.end) {
        add_piece(unit, parameter, run.begin);
      }
      into_.files.back().tensors.push_back(
          {.name = TensorRun{.tensor = spec.name, .begin = run.begin, .end = run.end}.name(),
           .type = TensorType::kF32,
           .shape = {run.end - run.begin}});
      data_bytes_ += bytes_of(run.end - run.begin);
    }
  }

  /// The runs of the parameter that lie on this disk, in order; neighbours are one run.
  [[nodiscard]] std::vector<ElementRun> runs_of(std::size_t unit, std::size_t parameter) const {
    std::vector<ElementRun> runs;
    for (const std::uint32_t rank : ranks_) {  // whose slices follow each other
      const ElementRun run = kept_by(layout_, rank, unit, parameter);
      if (run.begin >= run.end || (!runs.empty() && run.end <= runs.back().end)) {
        continue;  // nothing, or what every rank has
      }
      if (!runs.empty() && runs.back().end == run.begin) {
        runs.back().end = run.end;
      } else {
        runs.push_back(run);
      }
    }
    return runs;
  }

  /// One of the ranks that have the unit, whole on each, writes it: for each unit the next one.
  [[nodiscard]] bool is_written_by_another(std::size_t unit) const {
    const Sharding& sharding = layout_.sharding;
    if (sharding.is_sharded(layout_.model.units[unit])) {
      return false;
    }
    return ranks_.empty() ? unit % sharding.world != sharding.rank
                          : ranks_[unit % ranks_.size()] != sharding.rank;
  }

  /// Adds the part of a parameter that lies in this rank's slice of its unit; the run that holds it
  /// in the file begins with the element `first`.
  void add_piece(std::size_t unit, std::size_t parameter, std::int64_t first) {
    const ElementRun kept = kept_by(layout_, layout_.sharding.rank, unit, parameter);
    if (kept.begin >= kept.end || is_written_by_another(unit)) {
      return;
    }
    const std::int64_t in_slice = layout_.parameters[unit].offsets[parameter] -
                                  static_cast<std::int64_t>(layout_.slice_begin(unit));
    TANDEM_CHECK_LE(static_cast<std::size_t>(in_slice + kept.end), layout_.slice_elements(unit),
                    "a piece lies in the rank's slice");
    into_.units[unit].pieces.push_back({.file = static_cast<std::uint32_t>(into_.files.size() - 1),
                                        .data_offset = data_bytes_ + bytes_of(kept.begin - first),
                                        .array = array_,
                                        .begin = static_cast<std::size_t>(in_slice + kept.begin),
                                        .end = static_cast<std::size_t>(in_slice + kept.end)});
  }

  const RankLayout& layout_;
  std::span<const std::uint32_t> ranks_;
  std::uint32_t array_;
  CheckpointLayout& into_;
  std::size_t first_;
  std::uint64_t whole_bytes_ = 0;  // of the last file so far, where it is whole
  std::uint64_t data_bytes_ = 0;   // of it on this disk
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
  return traits_of(optimizer.kind).states[array - 1];
}

ElementRun kept_by(const RankLayout& layout, std::uint32_t rank, std::size_t unit,
                   std::size_t parameter) {
  const UnitSpec& spec = layout.model.units[unit];
  TANDEM_CHECK(parameter < spec.parameters.size(), "a parameter is one of its unit's");
  const UnitLayout& block = layout.parameters[unit].block;
  const std::uint32_t slice = layout.sharding.is_sharded(spec) ? rank : 0;
  const auto first = static_cast<std::int64_t>(block.shard_begin(slice));
  const std::int64_t last = first + static_cast<std::int64_t>(block.shard_elements);
  const std::int64_t offset = layout.parameters[unit].offsets[parameter];
  const std::int64_t begin = std::max(offset, first);
  const std::int64_t end = std::min(offset + spec.parameters[parameter].numel(), last);
  return begin < end ? ElementRun{.begin = begin - offset, .end = end - offset} : ElementRun{};
}

CheckpointLayout CheckpointLayout::of(const RankLayout& layout,
                                      std::span<const std::uint32_t> ranks, bool with_frozen) {
  TANDEM_CHECK(ranks.empty() || std::ranges::find(ranks, layout.sharding.rank) != ranks.end(),
               "a rank writes to a disk that it sees");
  CheckpointLayout made;
  const std::vector<UnitSpec>& units = layout.model.units;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    made.units.push_back({.pieces = {},
                          .elements = layout.slice_elements(unit),
                          .is_updated = !layout.update_ranges(unit).empty()});
  }
  const auto arrays = static_cast<std::uint32_t>(1 + state_arrays(layout.shape.update));
  for (std::uint32_t array = kMasterArray; array < arrays; ++array) {
    ArrayFiles files(layout, ranks, array, made);
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      if (with_frozen || !units[unit].frozen()) {
        files.add_unit(unit);
      }
    }
    files.name_files(array_name(layout.shape.update, array));
  }
  return made;
}

std::string CheckpointLayout::index_json() const {
  std::int64_t total = 0;
  JsonWriter json(2);
  json.begin_object().key("weight_map").begin_object();
  for (const PlannedFile& file : whole) {
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
