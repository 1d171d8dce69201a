// models/cifar/dataset.hpp — makes micro-batches of images: a pixel is divided by 255, and then
// becomes (x - 0.5) / 0.5, as in the example.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "engine/data/dataset.hpp"
#include "models/cifar/records.hpp"

namespace tandem {

/// Writes one image's pixels as the net takes them: [3, 32, 32], each from -1 to 1.
void normalise_cifar(const std::uint8_t* pixels, float* out);

class CifarDataset : public Dataset {
 public:
  explicit CifarDataset(std::shared_ptr<const CifarImages> images) : images_(std::move(images)) {}

  [[nodiscard]] std::int64_t size() const override { return images_->size(); }
  /// The fingerprint of all pixels and labels.
  [[nodiscard]] std::string fingerprint() const override;
  /// Returns features [rows, 3, 32, 32] and labels [rows]; `tokens` counts images.
  [[nodiscard]] HostBatch collate(std::span<const std::int64_t> indices) const override;

 private:
  std::shared_ptr<const CifarImages> images_;
};

}  // namespace tandem
