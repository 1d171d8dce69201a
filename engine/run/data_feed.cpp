#include "engine/run/data_feed.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include "engine/types/stopwatch.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

template <class T>
at::Tensor copy_of(const std::vector<T>& values, at::IntArrayRef shape, at::ScalarType type) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    count *= std::max<std::int64_t>(0, extent);
  }
  if (static_cast<std::size_t>(count) != values.size()) {
    throw user_error("data",
                     "a data set's collate() gave {} values for a batch of [{}]; correct its "
                     "HostBatch",
                     values.size(), fmt::join(shape, ", "));
  }
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(type));
  std::memcpy(tensor.data_ptr(), values.data(), values.size() * sizeof(T));
  return tensor;
}

const PrefetchOptions& checked(const PrefetchOptions& ahead) {
  if (ahead.workers < 1 || ahead.depth < 1) {
    throw user_error("engine",
                     "InitializeArgs::prefetch has {} workers and a depth of {}; the loader needs "
                     "1 of each at least",
                     ahead.workers, ahead.depth);
  }
  return ahead;
}

}  // namespace

Batch to_tensors(const HostBatch& host) {
  if (!host.feature_shape.empty()) {
    const std::vector<std::int64_t> labels =
        host.label_shape.empty() ? std::vector{host.rows} : host.label_shape;
    return {.inputs = copy_of(host.features, host.feature_shape, at::kFloat),
            .labels = host.targets.empty() ? copy_of(host.labels, labels, at::kLong)
                                           : copy_of(host.targets, labels, at::kFloat),
            .tokens = host.tokens,
            .loss_share = host.loss_share,
            .label_count = counted_labels(host)};
  }
  return {.inputs = copy_of(host.inputs, {host.rows, host.length}, at::kLong),
          .labels = copy_of(host.labels, {host.rows, host.length}, at::kLong),
          .tokens = host.tokens,
          .loss_share = host.loss_share,
          .positions = host.positions.empty()
                           ? at::Tensor()
                           : copy_of(host.positions, {host.rows, host.length}, at::kLong),
          .lengths =
              host.lengths.empty() ? at::Tensor() : copy_of(host.lengths, {host.rows}, at::kLong),
          .label_count = counted_labels(host)};
}

DataFeed::DataFeed(Rank& rank, std::shared_ptr<const Dataset> dataset, LoaderOptions options,
                   const PrefetchOptions& ahead)
    : rank_(rank),
      fingerprint_(dataset->fingerprint()),
      seed_(options.sampler.seed),
      loader_(std::move(dataset), std::move(options)),
      pool_(rank.loop(), CpuPool::Options{.threads = checked(ahead).workers, .name = "data"}),
      depth_(ahead.depth) {
  start(0);
}

bool DataFeed::has(std::int64_t more) const {
  const auto batches = loader_.batches();
  return !batches || taken_ + more <= *batches;
}

void DataFeed::start(std::int64_t first) {
  const auto make = [this](std::uint64_t number) {
    return loader_.make(static_cast<std::int64_t>(number));
  };
  prefetches_.push_back(std::make_unique<DataPrefetch<HostBatch>>(DataPrefetch<HostBatch>::Options{
      .pool = &pool_, .make = make, .first = static_cast<std::uint64_t>(first), .depth = depth_}));
  prefetches_.back()->start(rank_.scope());
}

void DataFeed::close() { prefetches_.back()->close(); }

void DataFeed::go_on_at(std::int64_t number) {
  TANDEM_CHECK(number >= 0, "micro-batches are counted from 0");
  close();
  taken_ = number;
  start(number);
}

Task<std::optional<Batch>> DataFeed::next() {
  const Stopwatch waited;
  std::optional<HostBatch> host =
      co_await prefetches_.back()->address().ask(NextBatch<HostBatch>{});
  wait_s_ += waited.elapsed_s();
  if (!host) {
    co_return std::nullopt;
  }
  ++taken_;
  auto make = [&] { return to_tensors(*host); };
  co_return co_await rank_.compute().lane().run(make, "make tensors");
}

double DataFeed::take_wait_s() { return std::exchange(wait_s_, 0); }

}  // namespace tandem
