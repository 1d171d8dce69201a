// trainer/cifar/accuracy.hpp — counts the images of each class that a net classifies correctly,
// shared among ranks.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/cifar/records.hpp"

namespace tandem {

struct ClassCounts {
  std::array<std::int64_t, kCifarClassNames.size()> correct{};
  std::array<std::int64_t, kCifarClassNames.size()> total{};

  void add(std::int64_t label, std::int64_t predicted);
  [[nodiscard]] std::int64_t all_correct() const;
  [[nodiscard]] std::int64_t all() const;
};

/// The share of the images that a process counts.
struct RankShare {
  int rank = 0;
  int world_size = 1;
};

/// Logits [B, 10] of images fp32 [B, 3, 32, 32].
using ImageLogits = std::function<at::Tensor(const at::Tensor& images)>;

/// Counts over this rank's share: every world_size-th image from `rank` on, `batch` at a time.
/// Every rank runs the same number of batches, which a sharded model needs: a rank without images
/// left repeats some and does not count them.
ClassCounts count_share(const ImageLogits& logits, const CifarImages& images, RankShare share,
                        std::int64_t batch);

/// Sums of a few numbers over all ranks.
using Sum = std::function<std::vector<double>(std::vector<double>)>;

/// The counts of all ranks together.
ClassCounts sum_over_ranks(const ClassCounts& mine, const Sum& sum);

/// Returns the classes that the net predicts for the images [0, count).
std::vector<std::int64_t> predict(const ImageLogits& logits, const CifarImages& images,
                                  std::int64_t count);

/// Returns the images at `indices` as the net takes them, fp32 [indices, 3, 32, 32].
at::Tensor image_tensor(const CifarImages& images, const std::vector<std::int64_t>& indices);
/// Returns their classes, int64 [indices].
at::Tensor label_tensor(const CifarImages& images, const std::vector<std::int64_t>& indices);

}  // namespace tandem
