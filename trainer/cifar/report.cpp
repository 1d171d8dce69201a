#include "trainer/cifar/report.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "trainer/cifar/png.hpp"

namespace tandem {

namespace {

constexpr std::int64_t kMaxImages = 32;
constexpr int kColumns = 8;
constexpr int kScale = 2;
constexpr int kSide = static_cast<int>(kCifarSide) * kScale;
constexpr int kGap = 4;
constexpr int kLine = kLetterHeight + 2;
constexpr int kCellWidth = kSide + kGap;
constexpr int kCellHeight = kSide + 2 * kLine + 2 * kGap;

constexpr Colour kPaper = {255, 255, 255};
constexpr Colour kInk = {40, 40, 40};
constexpr Colour kRight = {0, 130, 60};
constexpr Colour kWrong = {200, 30, 30};

double percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

void draw_images(Canvas& canvas, int left, int top, const std::uint8_t* pixels) {
  const auto plane = static_cast<std::ptrdiff_t>(kCifarSide * kCifarSide);
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      const std::uint8_t* pixel = pixels + (y / kScale) * kCifarSide + x / kScale;
      canvas.set(left + x, top + y, {pixel[0], pixel[plane], pixel[2 * plane]});
    }
  }
}

}  // namespace

bool RunningLoss::add(std::int64_t epoch, std::int64_t number, double loss) {
  if (std::exchange(epoch_, epoch) != epoch) {
    sum_ = 0;
  }
  sum_ += loss;
  if ((number + 1) % interval_ != 0) {
    return false;
  }
  mean_ = std::exchange(sum_, 0) / static_cast<double>(interval_);
  return true;
}

std::string example_loss_line(std::int64_t epoch, std::int64_t number, double mean) {
  return fmt::format("[{: d}, {: 5d}] loss: {: .3f}", epoch + 1, number + 1, mean);
}

std::vector<std::string> example_accuracy_lines(const ClassCounts& counts) {
  std::vector<std::string> lines = {
      fmt::format("Accuracy of the network on the {} test images: {: .0f} %", counts.all(),
                  percent(counts.all_correct(), counts.all()))};
  for (std::size_t i = 0; i < kCifarClassNames.size(); ++i) {
    lines.push_back(fmt::format("Accuracy of {:>5s} : {: 2.0f} %", kCifarClassNames[i],
                                percent(counts.correct[i], counts.total[i])));
  }
  return lines;
}

std::string tutorial_loss_line(std::int64_t epoch, std::int64_t number, double mean) {
  return fmt::format("[{}, {:5d}] loss: {:.3f}", epoch + 1, number + 1, mean);
}

std::vector<std::string> tutorial_accuracy_lines(const ClassCounts& counts) {
  std::vector<std::string> lines = {
      fmt::format("Accuracy of the network on the {} test images: {} %", counts.all(),
                  static_cast<std::int64_t>(percent(counts.all_correct(), counts.all())))};
  for (std::size_t i = 0; i < kCifarClassNames.size(); ++i) {
    lines.push_back(
        fmt::format("Accuracy of {:>5s} : {:2d} %", kCifarClassNames[i],
                    static_cast<std::int64_t>(percent(counts.correct[i], counts.total[i]))));
  }
  return lines;
}

void write_predictions(const std::filesystem::path& file, const CifarImages& images,
                       const ImageLogits& logits) {
  const std::int64_t count = std::min(kMaxImages, images.size());
  const std::vector<std::int64_t> predicted = predict(logits, images, count);
  if (file.empty()) {
    return;
  }
  const int rows = (static_cast<int>(count) + kColumns - 1) / kColumns;
  Canvas canvas(kGap + kColumns * kCellWidth, kGap + rows * kCellHeight, kPaper);
  for (std::int64_t i = 0; i < count; ++i) {
    const int left = kGap + static_cast<int>(i % kColumns) * kCellWidth;
    const int top = kGap + static_cast<int>(i / kColumns) * kCellHeight;
    const std::int64_t label = images.labels[static_cast<std::size_t>(i)];
    const std::int64_t said = predicted[static_cast<std::size_t>(i)];
    draw_images(canvas, left, top, images.image(i));
    canvas.write(left, top + kSide + 2, kCifarClassNames[static_cast<std::size_t>(label)], kInk);
    canvas.write(left, top + kSide + 2 + kLine, kCifarClassNames[static_cast<std::size_t>(said)],
                 said == label ? kRight : kWrong);
  }
  write_png(file, canvas);
}

}  // namespace tandem
