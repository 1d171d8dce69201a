#include "models/cifar/dataset.hpp"

#include <array>

#include "actors/storage/content_hash.hpp"

namespace tandem {

void normalise_cifar(const std::uint8_t* pixels, float* out) {
  static const auto table = [] {
    std::array<float, 256> values{};
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = (static_cast<float>(i) / 255.0F - 0.5F) / 0.5F;
    }
    return values;
  }();
  for (std::int64_t i = 0; i < kCifarPixels; ++i) {
    out[i] = table[pixels[i]];
  }
}

std::string CifarDataset::fingerprint() const {
  ContentHasher hasher;
  hasher.add(std::as_bytes(std::span(images_->pixels)));
  hasher.add(std::as_bytes(std::span(images_->labels)));
  return hasher.result().text();
}

HostBatch CifarDataset::collate(std::span<const std::int64_t> indices) const {
  const auto rows = static_cast<std::int64_t>(indices.size());
  HostBatch batch{.rows = rows,
                  .length = 1,
                  .tokens = rows,
                  .feature_shape = {rows, kCifarChannels, kCifarSide, kCifarSide}};
  batch.features.resize(indices.size() * static_cast<std::size_t>(kCifarPixels));
  batch.labels.reserve(indices.size());
  float* out = batch.features.data();
  for (const std::int64_t index : indices) {
    normalise_cifar(images_->image(index), out);
    batch.labels.push_back(images_->labels[static_cast<std::size_t>(index)]);
    out += kCifarPixels;
  }
  return batch;
}

}  // namespace tandem
