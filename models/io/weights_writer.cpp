#include "models/io/weights_writer.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <set>
#include <system_error>
#include <utility>

#include "actors/kernels/finite.hpp"
#include "actors/storage/json.hpp"
#include "actors/storage/safetensors.hpp"
#include "runtime/system/reach.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "save model";
constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

bool is_shard_name(std::string_view name) {
  return name.starts_with("model-") && name.ends_with(".safetensors") &&
         name.find("-of-") != std::string_view::npos;
}

}  // namespace

bool is_weight_file(std::string_view name) {
  return name == kSingle || name == kIndex || is_shard_name(name);
}

WeightsWriter::WeightsWriter(std::filesystem::path folder, std::vector<TensorPlan> tensors)
    : WeightsWriter(std::move(folder), std::move(tensors), Options{}) {}

WeightsWriter::WeightsWriter(std::filesystem::path folder, std::vector<TensorPlan> tensors,
                             Options options)
    : folder_(std::move(folder)), tensors_(std::move(tensors)), file_(std::move(options.file)) {
  std::set<std::string_view> names;
  for (const TensorPlan& tensor : tensors_) {
    TANDEM_CHECK(names.insert(tensor.name).second, "a tensor is planned once");
  }
  make_writable_folder(folder_, kWhere);
  plan_shards(options.max_shard_bytes);
  // All files at once: each reserves its space, so a disk that is too small shows here.
  for (Shard& shard : shards_) {
    const std::span<const TensorPlan> part(tensors_.data() + shard.first, shard.last - shard.first);
    const std::string header = safetensors_header(part);
    std::uint64_t bytes = header.size();
    for (const TensorPlan& tensor : part) {
      bytes += tensor.size_bytes();
    }
    shard.file = std::make_unique<AtomicFile>(folder_ / shard.name, std::string(kWhere), bytes);
    shard.file->append(header);
  }
  skip_complete();
}

WeightsWriter::~WeightsWriter() = default;

void WeightsWriter::plan_shards(std::uint64_t max_shard_bytes) {
  std::uint64_t bytes = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const std::uint64_t more = tensors_[i].size_bytes();
    if (max_shard_bytes > 0 && i > first && bytes + more > max_shard_bytes) {
      shards_.push_back({.first = first, .last = i});
      first = i;
      bytes = 0;
    }
    bytes += more;
  }
  shards_.push_back({.first = first, .last = tensors_.size()});
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].name = shards_.size() == 1
                          ? file_
                          : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards_.size());
  }
}

void WeightsWriter::skip_complete() {
  while (tensor_ < tensors_.size() && written_bytes_ == tensors_[tensor_].size_bytes()) {
    ++tensor_;
    written_bytes_ = 0;
  }
  while (shard_ + 1 < shards_.size() && tensor_ >= shards_[shard_].last) {
    ++shard_;
  }
}

const TensorPlan* WeightsWriter::current() const noexcept {
  return tensor_ < tensors_.size() ? &tensors_[tensor_] : nullptr;
}

void WeightsWriter::append(std::span<const std::byte> bytes) {
  if (bytes.empty()) {
    return;
  }
  TANDEM_CHECK(
      tensor_ < tensors_.size() && bytes.size() <= tensors_[tensor_].size_bytes() - written_bytes_,
      "an append stays inside its tensor");
  shards_[shard_].file->append(bytes);
  written_bytes_ += bytes.size();
  skip_complete();
}

void WeightsWriter::check_range(std::span<const float> values) const {
  const TensorPlan& tensor = tensors_[tensor_];
  const DType type = tensor.type == TensorType::kF16 ? DType::kF16 : DType::kBF16;
  const std::size_t at = first_not_finite(buffer_.data(), type, values.size());
  if (at < values.size() && std::isfinite(values[at])) {
    throw failure(ExitCode::kBadState, kWhere,
                  "{} has the value {:g}, which is infinite in {}; nothing was saved: save in a "
                  "type of more range (--save_dtype)",
                  tensor.name, values[at], name_of(type));
  }
}

void WeightsWriter::append_f32(std::span<const float> values) {
  if (values.empty()) {
    return;
  }
  TANDEM_CHECK(tensor_ < tensors_.size(), "there is a tensor left to write");
  const TensorType type = tensors_[tensor_].type;
  if (type == TensorType::kF32) {
    append(std::as_bytes(values));
    return;
  }
  constexpr std::size_t kChunk = 32'768;
  while (!values.empty()) {
    const auto part = values.first(std::min(kChunk, values.size()));
    buffer_.resize(part.size() * bytes_of(type));
    convert_from_f32(type, part, buffer_);
    check_range(part);
    append(buffer_);
    values = values.subspan(part.size());
  }
}

std::string WeightsWriter::index_json() const {
  std::uint64_t total = 0;
  std::string map;
  for (const Shard& shard : shards_) {
    for (std::size_t i = shard.first; i < shard.last; ++i) {
      total += tensors_[i].size_bytes();
      map += fmt::format("{}\n    {}: {}", map.empty() ? "" : ",", json_quote(tensors_[i].name),
                         json_quote(shard.name));
    }
  }
  return fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{{}\n  }}\n}}\n",
      total, map);
}

std::vector<std::string> WeightsWriter::weight_files_there() const {
  std::vector<std::string> names;
  if (reach::list(folder_, names) != 0) {
    throw failure(ExitCode::kFailure, "save", "cannot list {}: {}; check the folder",
                  folder_.string(), std::generic_category().message(errno));
  }
  std::erase_if(names, [](const std::string& name) { return !is_weight_file(name); });
  return names;
}

void WeightsWriter::remove_replaced(const std::vector<std::string>& old_files) const {
  for (const std::string& name : old_files) {
    const bool ours = (shards_.size() > 1 && name == kIndex) ||
                      std::any_of(shards_.begin(), shards_.end(),
                                  [&](const Shard& shard) { return shard.name == name; });
    if (!ours) {
      (void)reach::remove(folder_ / name);
    }
  }
}

void WeightsWriter::finish() {
  TANDEM_CHECK(tensor_ == tensors_.size(), "every planned tensor was written");
  const std::vector<std::string> old_files = weight_files_there();
  for (Shard& shard : shards_) {
    shard.file->sync();
  }
  if (shards_.size() > 1) {
    // An older single file would win over our index, an older index could name files that are ours
    // now: both go first.
    (void)reach::remove(folder_ / kSingle);
    (void)reach::remove(folder_ / kIndex);
  }
  for (Shard& shard : shards_) {
    shard.file->commit();
  }
  if (shards_.size() > 1) {
    write_file(folder_ / kIndex, kWhere, index_json());
  }
  remove_replaced(old_files);
}

}  // namespace tandem
