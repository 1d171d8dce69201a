#include "engine/data/loader.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "runtime/util/error.hpp"

namespace tandem {

std::int64_t batches_per_epoch(std::int64_t records, const LoaderOptions& options) {
  const std::int64_t of_step = options.sampler.world_size * options.accumulation;
  const std::int64_t full = records / options.micro_batch;
  const std::int64_t all = (records + options.micro_batch - 1) / options.micro_batch;
  const std::int64_t steps = options.drop_last ? full / of_step : (all + of_step - 1) / of_step;
  return steps * options.accumulation;
}

Loader::Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
    : dataset_(std::move(dataset)), options_(options) {
  options_.sampler.records = dataset_->size();
  options_.sampler.block = options_.micro_batch;
  if (options_.sampler.records <= 0) {
    throw user_error("dataset", "the data set has {} records; training needs one at least",
                     options_.sampler.records);
  }
  batches_per_epoch_ = tandem::batches_per_epoch(options_.sampler.records, options_);
  if (batches_per_epoch_ == 0) {
    throw user_error(
        "dataset",
        "{} records on {} ranks make no full micro-batch of {} and dataloader_drop_last "
        "is true; use a smaller micro-batch or set it to false",
        options_.sampler.records, options_.sampler.world_size, options_.micro_batch);
  }
}

std::optional<std::int64_t> Loader::batches() const noexcept {
  if (options_.epochs == 0) {
    return std::nullopt;
  }
  return options_.epochs * batches_per_epoch_;
}

std::optional<HostBatch> Loader::make(std::int64_t number) const {
  const std::int64_t epoch = number / batches_per_epoch_;
  if (options_.epochs != 0 && epoch >= options_.epochs) {
    return std::nullopt;
  }
  const auto order = order_of(epoch);
  HostBatch batch =
      dataset_->collate(block_of_round(options_.sampler, *order, number % batches_per_epoch_));
  batch.epoch = epoch;
  if (options_.counts_labels) {
    const std::int64_t all = labels_of_step(*order, number % batches_per_epoch_);
    batch.loss_share =
        all == 0 ? 0.0 : static_cast<double>(counted_labels(batch)) / static_cast<double>(all);
  }
  return batch;
}

// The sampler says what every rank takes, so none has to be asked.
std::int64_t Loader::labels_of_step(std::span<const std::int64_t> order, std::int64_t round) const {
  const std::int64_t first = round / options_.accumulation * options_.accumulation;
  std::int64_t labels = 0;
  SamplerOptions sampler = options_.sampler;
  for (std::int64_t a = 0; a < options_.accumulation; ++a) {
    for (sampler.rank = 0; sampler.rank < sampler.world_size; ++sampler.rank) {
      labels += dataset_->labels(block_of_round(sampler, order, first + a));
    }
  }
  return labels;
}

std::shared_ptr<const std::vector<std::int64_t>> Loader::order_of(std::int64_t epoch) const {
  const std::lock_guard lock(mutex_);
  if (epoch != cached_epoch_) {
    cached_order_ =
        std::make_shared<const std::vector<std::int64_t>>(epoch_order(options_.sampler, epoch));
    cached_epoch_ = epoch;
  }
  return cached_order_;
}

}  // namespace tandem
