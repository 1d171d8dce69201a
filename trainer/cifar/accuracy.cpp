#include "trainer/cifar/accuracy.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>

#include "models/cifar/dataset.hpp"

namespace tandem {

void ClassCounts::add(std::int64_t label, std::int64_t predicted) {
  const auto index = static_cast<std::size_t>(label);
  ++total[index];
  correct[index] += label == predicted ? 1 : 0;
}

std::int64_t ClassCounts::all_correct() const {
  return std::accumulate(correct.begin(), correct.end(), std::int64_t{0});
}

std::int64_t ClassCounts::all() const {
  return std::accumulate(total.begin(), total.end(), std::int64_t{0});
}

at::Tensor image_tensor(const CifarImages& images, const std::vector<std::int64_t>& indices) {
  const auto rows = static_cast<std::int64_t>(indices.size());
  at::Tensor tensor = at::empty({rows, kCifarChannels, kCifarSide, kCifarSide}, at::kFloat);
  auto* out = tensor.data_ptr<float>();
  for (const std::int64_t index : indices) {
    normalise_cifar(images.image(index), out);
    out += kCifarPixels;
  }
  return tensor;
}

at::Tensor label_tensor(const CifarImages& images, const std::vector<std::int64_t>& indices) {
  at::Tensor labels = at::empty({static_cast<std::int64_t>(indices.size())}, at::kLong);
  std::ranges::transform(indices, labels.data_ptr<std::int64_t>(), [&](std::int64_t index) {
    return images.labels[static_cast<std::size_t>(index)];
  });
  return labels;
}

namespace {

std::vector<std::int64_t> classes_of(const at::Tensor& logits) {
  const at::Tensor classes = at::argmax(logits, 1).contiguous();
  const auto* data = classes.data_ptr<std::int64_t>();
  return {data, data + classes.numel()};
}

}  // namespace

ClassCounts count_share(const ImageLogits& logits, const CifarImages& images, RankShare share,
                        std::int64_t batch) {
  ClassCounts counts;
  const std::int64_t per_rank = (images.size() + share.world_size - 1) / share.world_size;
  for (std::int64_t begin = 0; begin < per_rank; begin += batch) {
    const std::int64_t end = std::min(begin + batch, per_rank);
    std::vector<std::int64_t> indices;
    std::size_t counted = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t index = i * share.world_size + share.rank;
      counted += index < images.size() ? 1 : 0;
      indices.push_back(index % images.size());
    }
    const std::vector<std::int64_t> predicted = classes_of(logits(image_tensor(images, indices)));
    for (std::size_t i = 0; i < counted; ++i) {
      counts.add(images.labels[static_cast<std::size_t>(indices[i])], predicted[i]);
    }
  }
  return counts;
}

ClassCounts sum_over_ranks(const ClassCounts& mine, const Sum& sum) {
  std::vector<double> numbers(mine.correct.begin(), mine.correct.end());
  numbers.insert(numbers.end(), mine.total.begin(), mine.total.end());
  numbers = sum(std::move(numbers));
  ClassCounts all;
  for (std::size_t i = 0; i < all.total.size(); ++i) {
    all.correct[i] = static_cast<std::int64_t>(numbers[i]);
    all.total[i] = static_cast<std::int64_t>(numbers[i + all.total.size()]);
  }
  return all;
}

std::vector<std::int64_t> predict(const ImageLogits& logits, const CifarImages& images,
                                  std::int64_t count) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  std::iota(indices.begin(), indices.end(), 0);
  return classes_of(logits(image_tensor(images, indices)));
}

}  // namespace tandem
