#include "models/foreign/flat_groups.hpp"

#include <algorithm>
#include <utility>

namespace tandem {

std::int64_t part_of(std::int64_t numel, std::size_t ranks) {
  const auto count = static_cast<std::int64_t>(ranks);
  return (numel + count - 1) / count;
}

void FlatGroup::Rank::add(std::shared_ptr<const TorchFile> file, const TorchTensor& tensor) {
  parts_.push_back({numel_, std::move(file), &tensor});
  numel_ += tensor.numel;
}

void FlatGroup::Rank::read(std::int64_t begin, std::int64_t end, float* out) const {
  auto part = std::ranges::upper_bound(parts_, begin, {}, &Part::begin) - 1;
  while (begin < end) {
    const std::int64_t last = std::min(end, part->begin + part->tensor->numel);
    part->file->read_f32(*part->tensor, begin - part->begin, last - part->begin, out);
    out += last - begin;
    begin = last;
    ++part;
  }
}

void FlatGroup::require(std::int64_t numel, const TorchFile& file, std::string_view what) const {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].numel() != numel) {
      throw file.error(fmt::format("rank {}'s part of {} has {} elements, and {} are expected", r,
                                   printable(what), ranks_[r].numel(), numel));
    }
  }
}

ImportedTensor::ReadF32 partitioned_reader(std::shared_ptr<const FlatGroup> group,
                                           std::int64_t offset, std::int64_t part) {
  return
      [group = std::move(group), offset, part](std::int64_t begin, std::int64_t end, float* out) {
        while (begin < end) {
          const std::int64_t rank = begin / part;
          const std::int64_t last = std::min(end, (rank + 1) * part);
          const std::int64_t start = offset - rank * part;
          group->ranks()[static_cast<std::size_t>(rank)].read(start + begin, start + last, out);
          out += last - begin;
          begin = last;
        }
      };
}

ImportedTensor::ReadF32 concatenated_reader(std::shared_ptr<const FlatGroup> group,
                                            std::int64_t offset, std::int64_t part) {
  return [read = partitioned_reader(std::move(group), 0, part), offset](
             std::int64_t begin, std::int64_t end, float* out) {
    read(begin + offset, end + offset, out);
  };
}

}  // namespace tandem
