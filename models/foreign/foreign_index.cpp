#include "models/foreign/foreign_index.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "actors/storage/json.hpp"
#include "models/foreign/foreign_pieces.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostRank = 32;
constexpr std::size_t kMostNameBytes = 1024;

/// The integers of an array; an error if it is no array of integers from 0 on.
std::vector<std::int64_t> numbers_of(const JsonValue& value) {
  std::vector<std::int64_t> out;
  for (const simdjson::dom::element item : value.array()) {
    std::int64_t number = 0;
    if (item.get(number) != simdjson::SUCCESS || number < 0) {
      throw value.wrong("an array of integers from 0 on");
    }
    out.push_back(number);
  }
  return out;
}

class IndexReader {
 public:
  IndexReader(const JsonValue& root, const fs::path& folder) : root_(root) {
    open_files(folder);
    place_storages();
  }

  ImportedCheckpoint read() {
    ImportedCheckpoint out;
    read_fields(out);
    std::set<std::string_view> names;
    const JsonValue tensors = root_.at("tensors");
    for (std::size_t i = 0; const simdjson::dom::element item : tensors.array()) {
      const JsonValue value = tensors.child(item, i++);
      out.tensors.push_back(tensor_of(value));
      if (!names.insert(value.at("name").string()).second) {
        throw value.at("name").error("is there twice");
      }
    }
    for (const auto& [alias, name] : root_.at("tied").members()) {
      if (!is_tensor_name(alias) || names.contains(alias) || !names.contains(name.string())) {
        throw name.error("is no other name of a tensor");
      }
      out.tied.emplace(alias, name.string());
    }
    return out;
  }

 private:
  /// [name, size]
  void open_files(const fs::path& folder) {
    for (const JsonValue& file : root_.at("files").items()) {
      const auto parts = file.items();
      const fs::path name = parts.empty() ? fs::path() : fs::path(parts.front().string());
      if (parts.size() != 2 || name.empty() || name.is_absolute() ||
          std::ranges::find(name, "..") != name.end() ||
          name.native().find('\0') != std::string::npos) {
        throw file.wrong("a name below the checkpoint's folder, and a size");
      }
      files_.push_back(std::make_shared<const ForeignFile>(
          folder / name, static_cast<std::uint64_t>(parts[1].integer(1))));
    }
  }

  /// [file, first byte, bytes, checksum]
  void place_storages() {
    const JsonValue all = root_.at("storages");
    storages_ = std::make_shared<ForeignStorages>(all.array().size());
    for (std::size_t i = 0; const simdjson::dom::element item : all.array()) {
      const JsonValue value = all.child(item, i);
      const auto parts = numbers_of(value);
      if (parts.size() != 4 || std::cmp_greater_equal(parts[0], files_.size()) ||
          std::cmp_greater(parts[3], std::numeric_limits<std::uint32_t>::max())) {
        throw value.wrong("a file, its first byte, bytes and a checksum");
      }
      ForeignStorage& storage = (*storages_)[i++];
      storage.file = files_[static_cast<std::size_t>(parts[0])];
      storage.begin = static_cast<std::uint64_t>(parts[1]);
      storage.size = static_cast<std::uint64_t>(parts[2]);
      storage.crc = static_cast<std::uint32_t>(parts[3]);
      const std::uint64_t available = storage.file->size_bytes();
      if (storage.begin > available || storage.size > available - storage.begin) {
        throw value.error("lies outside of the file");
      }
    }
  }

  /// [storage, type, first element, elements], for a view with gaps also [..., shape, strides]
  ForeignPiece piece_of(const JsonValue& value) const {
    const auto parts = value.items();
    const auto type =
        parts.size() == 4 || parts.size() == 6 ? type_named(parts[1].string()) : std::nullopt;
    if (!type || std::cmp_greater_equal(parts[0].integer(0), storages_->size())) {
      throw value.wrong("a storage, a type, its first element and a number of them");
    }
    ForeignPiece piece{.storage = &(*storages_)[static_cast<std::size_t>(parts[0].integer(0))],
                       .type = *type,
                       .offset = parts[2].integer(0),
                       .numel = parts[3].integer(1),
                       .view = nullptr};
    if (parts.size() == 6) {
      piece.view =
          std::make_unique<const ForeignPiece::View>(numbers_of(parts[4]), numbers_of(parts[5]));
      if (piece.view->shape.size() != piece.view->stride.size() ||
          piece.view->shape.size() > kMostRank) {
        throw value.error("has a shape and strides that do not fit together");
      }
    }
    if (!piece.fits()) {
      throw value.error("does not fit into its storage");
    }
    return piece;
  }

  std::shared_ptr<const ForeignArray> array_of(const JsonValue& value, std::int64_t numel) const {
    std::vector<ForeignPiece> pieces;
    pieces.reserve(value.array().size());
    std::int64_t found = 0;
    for (std::size_t i = 0; const simdjson::dom::element item : value.array()) {
      pieces.push_back(piece_of(value.child(item, i++)));
      if (__builtin_add_overflow(found, pieces.back().numel, &found)) {
        throw value.error("has too many elements");
      }
    }
    if (found != numel) {
      throw value.error(fmt::format("has {} elements, and its tensor {}", found, numel));
    }
    return std::make_shared<const ForeignArray>(storages_, std::move(pieces));
  }

  static ImportedTensor::ReadF32 reader_of(std::shared_ptr<const ForeignArray> array) {
    return [array = std::move(array)](std::int64_t begin, std::int64_t end, float* out) {
      array->read_f32(begin, end, out);
    };
  }

  ImportedTensor tensor_of(const JsonValue& value) const {
    const JsonValue name = value.at("name");
    const auto type = type_named(value.at("type").string());
    if (!is_tensor_name(name.string()) || !type) {
      throw value.error("has no name or no type of a tensor");
    }
    ImportedTensor out{.name = std::string(name.string()),
                       .shape = numbers_of(value.at("shape")),
                       .type = *type,
                       .frozen = value.at("frozen").boolean(),
                       .buffer = value.at("buffer").boolean()};
    if (out.shape.size() > kMostRank || !checked_size_bytes(out.shape, TensorType::kF64)) {
      throw value.at("shape").error("is too large");
    }
    const auto master = array_of(value.at("master"), out.numel());
    out.master = reader_of(master);
    for (std::size_t m = 0; const char* kind : {"exp_avg", "exp_avg_sq"}) {
      if (const auto moment = value.find(kind)) {
        out.moments[m] = reader_of(array_of(*moment, out.numel()));
      }
      ++m;
    }
    if (value.at("stored").boolean()) {
      if (!master->is_of(*type)) {
        throw value.at("master").error("has pieces of another type than the tensor");
      }
      out.stored = [master](std::int64_t begin, std::int64_t end, std::span<std::byte> bytes) {
        master->read_stored(begin, end, bytes);
      };
    }
    return out;
  }

  void read_fields(ImportedCheckpoint& out) const {
    constexpr std::int64_t kMostInt = std::numeric_limits<int>::max();
    const auto text = [&](std::string_view key) { return std::string(root_.at(key).string()); };
    const auto integer = [&](std::string_view key) { return root_.at(key).integer(); };
    out.kind = text("kind");
    out.global_steps = integer("global_steps");
    out.skipped_steps = integer("skipped_steps");
    out.optimizer_steps = integer("optimizer_steps");
    out.global_samples = integer("global_samples");
    if (const auto scaler = root_.find("scaler")) {
      out.scaler = LossScaleState{
          .scale = scaler->at("scale").number(),
          .step = scaler->at("step").integer(),
          .last_overflow = scaler->at("last_overflow").integer(),
          .hysteresis = static_cast<int>(scaler->at("hysteresis").integer(-kMostInt, kMostInt))};
    }
    if (const auto schedule = root_.find("schedule_step")) {
      out.schedule_step = schedule->integer();
    }
    out.zero_stage = static_cast<int>(root_.at("zero_stage").integer(-kMostInt, kMostInt));
    out.world_size = static_cast<int>(root_.at("world_size").integer(-kMostInt, kMostInt));
    out.ds_version = text("ds_version");
    out.ds_config_json = text("ds_config");
    out.client_state_json = text("client_state");
    for (const JsonValue& note : root_.at("notes").items()) {
      out.notes.emplace_back(note.string());
    }
  }

  JsonValue root_;
  std::vector<std::shared_ptr<const ForeignFile>> files_;
  std::shared_ptr<ForeignStorages> storages_;
};

}  // namespace

bool is_tensor_name(std::string_view name) {
  return !name.empty() && name.size() < kMostNameBytes &&
         simdjson::validate_utf8(name.data(), name.size()) &&
         std::ranges::none_of(name, [](unsigned char c) { return c < ' ' || c == 0x7f; });
}

ImportedCheckpoint read_foreign_index(std::string_view json, const fs::path& folder) {
  const JsonDocument document =
      JsonDocument::parse(json, {.where = "import",
                                 .file = "the index of " + folder.string(),
                                 .advice = "this is a fault of tools/convert, please report it"});
  return IndexReader(document.root(), folder).read();
}

}  // namespace tandem
