#include "actors/storage/safetensors_header.hpp"

#include <fmt/ranges.h>

#include "actors/storage/json.hpp"
#include "actors/storage/uncached_file.hpp"
#include "runtime/io/file_io.hpp"

namespace tandem {
namespace {

std::uint64_t data_bytes(const std::vector<TensorPlan>& tensors) {
  std::uint64_t bytes = 0;
  for (const TensorPlan& tensor : tensors) {
    bytes += tensor.size_bytes();
  }
  return bytes;
}

}  // namespace

std::int64_t TensorPlan::numel() const noexcept {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    count *= size;
  }
  return count;
}

std::uint64_t TensorPlan::size_bytes() const noexcept {
  return static_cast<std::uint64_t>(numel()) * bytes_of(type);
}

std::string safetensors_header(std::span<const TensorPlan> tensors, std::size_t alignment,
                               const std::map<std::string, std::string>& metadata) {
  constexpr std::size_t kLengthBytes = 8;
  std::string json;
  for (const auto& [name, value] : metadata) {
    json += fmt::format("{}{}:{}", json.empty() ? "" : ",", json_quote(name), json_quote(value));
  }
  json = fmt::format(R"({{"__metadata__":{{{}}})", json);
  std::uint64_t offset = 0;
  for (const TensorPlan& tensor : tensors) {
    const std::uint64_t end = offset + tensor.size_bytes();
    json += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        json_quote(tensor.name), name_of(tensor.type), fmt::join(tensor.shape, ","),
                        offset, end);
    offset = end;
  }
  json += '}';
  const std::size_t past = (kLengthBytes + json.size()) % alignment;
  json.append(past == 0 ? 0 : alignment - past, ' ');
  std::string out;
  for (std::uint64_t length = json.size(), i = 0; i < kLengthBytes; ++i, length >>= 8) {
    out.push_back(static_cast<char>(length & 0xFF));
  }
  return out + json;
}

std::string PlannedFile::header() const {
  return data_bytes(tensors) < UncachedFile::kWorthBytes
             ? safetensors_header(tensors)
             : safetensors_header(tensors, FileIo::kDirectAlignment);
}

std::uint64_t PlannedFile::header_bytes() const { return header().size(); }

std::uint64_t PlannedFile::size_bytes() const { return header_bytes() + data_bytes(tensors); }

}  // namespace tandem
