// models/cifar/records.hpp — CIFAR-10 as it is published: images of 3 x 32 x 32 bytes with a
// label from 0 to 9.
//
// Two forms of the same files are read: data_batch_1.bin (binary archive) and data_batch_1.bin.xz.
// Every label and length is checked here, so callers need not check them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

inline constexpr std::int64_t kCifarChannels = 3;
inline constexpr std::int64_t kCifarSide = 32;
inline constexpr std::int64_t kCifarPixels = kCifarChannels * kCifarSide * kCifarSide;

/// The names that the example prints; the data set's own names of 0 and 1 are airplane and
/// automobile.
inline constexpr std::array<std::string_view, 10> kCifarClassNames = {
    "plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};

struct CifarImages {
  std::vector<std::uint8_t> pixels;  // [size, 3, 32, 32]
  std::vector<std::uint8_t> labels;  // [size], 0 to 9

  [[nodiscard]] std::int64_t size() const noexcept {
    return static_cast<std::int64_t>(labels.size());
  }
  [[nodiscard]] const std::uint8_t* image(std::int64_t index) const noexcept {
    return pixels.data() + index * kCifarPixels;
  }
};

struct CifarData {
  CifarImages train;
  CifarImages test;
  std::string description;  // one line: where from, how many
};

/// Reads one batch file, whose form its name's ending tells. Throws user_error if it is missing, is
/// no batch, has a partial record, or has a label above 9.
CifarImages read_cifar_file(const std::filesystem::path& file);

/// Reads test_batch and the training files data_batch_1, 2, ... that exist, without a gap, from
/// `folder` or from the archive's folder in it (cifar-10-batches-bin). Throws user_error if a file
/// is missing or damaged, or if it is the Python archive, which `tandem fetch` converts.
CifarData read_cifar(const std::filesystem::path& folder);

/// The folder into which `tandem fetch dataset cifar10` puts the data: $TANDEM_CACHE, or
/// $XDG_CACHE_HOME/tandem, or ~/.cache/tandem.
std::filesystem::path cifar_cache_folder();

/// Reads `data_dir` if it is not empty, else the fetched data if there is any, else generates a
/// set; the description says which.
CifarData open_cifar(const std::string& data_dir);

/// Generates a set of this form that a net can learn: five shapes, each in a warm or a cool colour,
/// of any size and position on a noisy background. It has the same bytes on every machine.
CifarData generated_cifar(std::int64_t train = 10'000, std::int64_t test = 2'000);

}  // namespace tandem
