// models/foreign/flat_groups.hpp — elements that DeepSpeed cut into one flat array per rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/foreign/imported_checkpoint.hpp"
#include "models/foreign/torch_file.hpp"

namespace tandem {

/// Returns the elements of a parameter on each of W ranks at stage 3: ceil(numel / W), with padding
/// at the end.
std::int64_t part_of(std::int64_t numel, std::size_t ranks);

/// One array per rank, each of which is one tensor or several behind each other (stage 3's
/// sub-groups).
class FlatGroup {
 public:
  class Rank {
   public:
    void add(std::shared_ptr<const TorchFile> file, const TorchTensor& tensor);
    void read(std::int64_t begin, std::int64_t end, float* out) const;
    [[nodiscard]] std::int64_t numel() const noexcept { return numel_; }

   private:
    struct Part {
      std::int64_t begin = 0;
      std::shared_ptr<const TorchFile> file;
      const TorchTensor* tensor = nullptr;
    };
    std::vector<Part> parts_;
    std::int64_t numel_ = 0;
  };

  Rank& add_rank() { return ranks_.emplace_back(); }
  [[nodiscard]] const std::vector<Rank>& ranks() const noexcept { return ranks_; }
  /// Throws the error of `file` unless every rank has `numel` elements.
  void require(std::int64_t numel, const TorchFile& file, std::string_view what) const;

 private:
  std::vector<Rank> ranks_;
};

/// Returns a reader of a parameter whose elements [r * part, (r + 1) * part) lie at `offset` of
/// rank r's array.
ImportedTensor::ReadF32 partitioned_reader(std::shared_ptr<const FlatGroup> group,
                                           std::int64_t offset, std::int64_t part);
/// Returns a reader of a parameter at `offset` of the ranks' arrays behind each other, each of
/// `part` elements.
ImportedTensor::ReadF32 concatenated_reader(std::shared_ptr<const FlatGroup> group,
                                            std::int64_t offset, std::int64_t part);

}  // namespace tandem
