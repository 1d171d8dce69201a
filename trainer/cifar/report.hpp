// trainer/cifar/report.hpp — the output of a CIFAR-10 trainer: the example's lines, character for
// character, and images.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "models/cifar/records.hpp"
#include "trainer/cifar/accuracy.hpp"

namespace tandem {

/// Adds up the losses of mini-batches and makes a line of every `interval` of them; a new epoch
/// starts again at zero.
class RunningLoss {
 public:
  explicit RunningLoss(std::int64_t interval) : interval_(interval) {}

  /// Takes the loss of mini-batch `number` (0-based) of `epoch` (0-based). Returns true if a line
  /// is due; mean() is then over the interval that ends here.
  bool add(std::int64_t epoch, std::int64_t number, double loss);
  [[nodiscard]] double mean() const noexcept { return mean_; }

 private:
  std::int64_t interval_;
  std::int64_t epoch_ = 0;
  double sum_ = 0;
  double mean_ = 0;
};

/// The DeepSpeed example's `[ 1,  2000] loss:  2.213`; its format puts a blank in the sign's place.
std::string example_loss_line(std::int64_t epoch, std::int64_t number, double mean);
/// The DeepSpeed example's eleven lines of accuracy. A class without images shows 0 %.
std::vector<std::string> example_accuracy_lines(const ClassCounts& counts);

/// The tutorial's `[1,  2000] loss: 2.213`.
std::string tutorial_loss_line(std::int64_t epoch, std::int64_t number, double mean);
std::vector<std::string> tutorial_accuracy_lines(const ClassCounts& counts);

/// Writes a PNG of the first images, at most 32, at twice their size, each above its label and the
/// predicted class (green: they agree). With an empty `file` nothing is written, for a rank that
/// only takes part in the model's call.
void write_predictions(const std::filesystem::path& file, const CifarImages& images,
                       const ImageLogits& logits);

}  // namespace tandem
