// Generates the data set that stands in for missing data. Shapes and colours are drawn from
// counters, so record i is a function of i alone.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "models/cifar/records.hpp"
#include "models/io/random_init.hpp"

namespace tandem {

namespace {

constexpr std::uint64_t kSeed = 0xC1FA;
constexpr int kShapes = 5;

/// Numbers of one record, one after the other.
class Draw {
 public:
  Draw(std::uint32_t split, std::uint32_t record) : counter_{0, record, split, 0} {}

  std::uint32_t bits() {
    if (at_ == block_.size()) {
      block_ = philox4x32(counter_, kSeed);
      ++counter_[0];
      at_ = 0;
    }
    return block_[at_++];
  }
  /// From low to high, both included. Whole numbers only: the bytes are the same on every machine.
  int between(int low, int high) {
    return low + static_cast<int>(bits() % static_cast<std::uint32_t>(high - low + 1));
  }

 private:
  std::array<std::uint32_t, 4> counter_;
  std::array<std::uint32_t, 4> block_{};
  std::size_t at_ = 4;
};

/// Whether the point (x, y) from the centre lies in the shape of radius r.
bool inside(int shape, int x, int y, int r) {
  const int distance = x * x + y * y;
  switch (shape) {
    case 0:
      return distance <= r * r;  // disc
    case 1:
      return distance <= r * r && 3 * distance >= r * r;  // ring
    case 2:
      return std::max(std::abs(x), std::abs(y)) <= 4 * r / 5;  // square
    case 3:
      return y >= -r && y <= r && 2 * std::abs(x) <= y + r;  // triangle
    default:
      return std::min(std::abs(x), std::abs(y)) <= r / 4 &&
             std::max(std::abs(x), std::abs(y)) <= r;  // cross
  }
}

void append_record(CifarImages& images, std::uint32_t split, std::uint32_t record) {
  Draw draw(split, record);
  const int label = draw.between(0, 9);
  const int shape = label % kShapes;
  const bool warm = label < kShapes;
  const int strong = draw.between(170, 230);
  const int weak = draw.between(30, 90);
  const std::array<int, 3> colour = {warm ? strong : weak, draw.between(50, 110),
                                     warm ? weak : strong};
  const int ground = draw.between(60, 150);
  const int r = draw.between(7, 12);
  const int centre_x = draw.between(r, static_cast<int>(kCifarSide) - 1 - r);
  const int centre_y = draw.between(r, static_cast<int>(kCifarSide) - 1 - r);
  for (const int channel_colour : colour) {
    for (int y = 0; y < kCifarSide; ++y) {
      for (int x = 0; x < kCifarSide; ++x) {
        const int base = inside(shape, x - centre_x, y - centre_y, r) ? channel_colour : ground;
        images.pixels.push_back(
            static_cast<std::uint8_t>(std::clamp(base + draw.between(-25, 25), 0, 255)));
      }
    }
  }
  images.labels.push_back(static_cast<std::uint8_t>(label));
}

CifarImages generate(std::uint32_t split, std::int64_t count) {
  CifarImages images;
  images.pixels.reserve(static_cast<std::size_t>(count * kCifarPixels));
  for (std::int64_t i = 0; i < count; ++i) {
    append_record(images, split, static_cast<std::uint32_t>(i));
  }
  return images;
}

}  // namespace

CifarData generated_cifar(std::int64_t train, std::int64_t test) {
  return {.train = generate(0, train),
          .test = generate(1, test),
          .description = fmt::format("generated shapes, since no CIFAR-10 is here (./tandem fetch "
                                     "dataset cifar10 gets it): {} train images, {} test images",
                                     train, test)};
}

}  // namespace tandem
