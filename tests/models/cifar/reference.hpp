// tests/models/cifar/reference.hpp — the images, labels and first weights of the references of the
// CIFAR-10 nets, and the values that torch computed with them.
//
// The small reference (tests/data/cifar/make.py) has neither images nor weights in its files: both
// follow from a hash of an index, here and there alike. Of gradients and final weights its file has
// every stride-th element. The large one is in ../shared, with CIFAR-10's own images.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include "actors/storage/safetensors.hpp"
#include "models/cifar/net.hpp"
#include "models/cifar/records.hpp"
#include "tests/data/references.hpp"

namespace tandem::test {

/// A number of 24 bits.
inline std::uint32_t hashed(std::uint32_t index, std::uint32_t stream) {
  return (index * 2654435761U + stream * 40503U) * 2246822519U >> 8;
}

inline CifarImages hashed_images(std::int64_t count) {
  constexpr std::uint32_t kImages = 98;
  CifarImages images;
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(count * kCifarPixels); ++i) {
    images.pixels.push_back(static_cast<std::uint8_t>(hashed(i, kImages) >> 16));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    images.labels.push_back(static_cast<std::uint8_t>(i * 7 % kCifarClasses));
  }
  return images;
}

/// Uniform within torch's bounds, 1 / sqrt(fan in); a bias has those of its matrix.
inline std::vector<float> hashed_weights(std::size_t parameter) {
  const ParameterSpec& spec = cifar_parameters()[parameter];
  const ParameterSpec& matrix = cifar_parameters()[parameter / 2 * 2];
  const auto fan_in = static_cast<double>(matrix.numel() / matrix.shape[0]);
  const auto bound = static_cast<float>(1 / std::sqrt(fan_in));
  std::vector<float> values;
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(spec.numel()); ++i) {
    const auto unit = static_cast<float>(hashed(i, static_cast<std::uint32_t>(parameter)));
    values.push_back((unit / 8388608.0F - 1.0F) * bound);
  }
  return values;
}

class CifarReference {
 public:
  /// `folder`: tests/data/cifar, or ../shared/oracles/cifar.
  explicit CifarReference(std::filesystem::path folder) : folder_(std::move(folder)) {
    traces_ = parser_.load((folder_ / "traces.json").string());
    own_ = is_own(folder_);
  }

  [[nodiscard]] bool own() const noexcept { return own_; }
  [[nodiscard]] std::size_t stride() const {
    return own_ ? static_cast<std::size_t>(std::int64_t(traces_["stride"])) : 1;
  }
  [[nodiscard]] double limit(const char* name, double large) const {
    return own_ ? double(traces_["limits"][name]) : large;
  }
  [[nodiscard]] simdjson::dom::object trace(const std::string& name) const { return traces_[name]; }
  [[nodiscard]] CifarImages images(std::int64_t count) const {
    return own_ ? hashed_images(count)
                : read_cifar_file(shared("data/cifar-10-batches-bin/data_batch_1.bin.xz"));
  }
  [[nodiscard]] ParameterSource weights() const {
    if (!own_) {
      return cifar_weights_of(folder_ / "initial.safetensors");
    }
    return [](const ParameterSpec& spec, std::int64_t begin, std::int64_t end, float* out) {
      for (std::size_t i = 0; i < cifar_parameters().size(); ++i) {
        if (cifar_parameters()[i].name == spec.name) {
          const std::vector<float> values = hashed_weights(i);
          std::copy(values.begin() + begin, values.begin() + end, out);
        }
      }
    };
  }
  /// The values that a file has of a parameter: the first one, the one a stride behind it, ...
  [[nodiscard]] std::vector<float> values(const std::string& file, const std::string& name) const {
    const auto opened =
        SafetensorsFile::open(folder_ / (own_ ? "reference.safetensors" : file + ".safetensors"));
    const TensorInfo& info = opened.at(own_ && file != "first_batch" ? file + "." + name : name);
    std::vector<float> found(static_cast<std::size_t>(info.numel()));
    opened.read_f32(info, 0, info.numel(), found.data());
    return found;
  }

 private:
  std::filesystem::path folder_;
  simdjson::dom::parser parser_;
  simdjson::dom::element traces_;
  bool own_ = false;
};

inline std::vector<std::filesystem::path> cifar_references() {
  return references({"cifar"}, {"oracles/cifar"});
}

}  // namespace tandem::test
