#include "actors/checkpoint/planned_file.hpp"

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

std::string PlannedFile::header() const {
  return data_bytes(tensors) < UncachedFile::kWorthBytes
             ? safetensors_header(tensors)
             : safetensors_header(tensors, FileIo::kDirectAlignment);
}

std::uint64_t PlannedFile::header_bytes() const { return header().size(); }

std::uint64_t PlannedFile::size_bytes() const { return header_bytes() + data_bytes(tensors); }

}  // namespace tandem
