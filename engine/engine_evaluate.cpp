// engine/engine_evaluate.cpp — the loss over a whole data set.
//
// Micro-batch i is made of the records [i * size, (i + 1) * size) and runs on rank i % world, or on
// the ranks of group i % groups where ranks share rows. Its
// loss is a function of these records and the weights; the losses are added up in the order of i on
// every rank. So the sums have the same bits on any number of ranks.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "engine/engine_impl.hpp"
#include "engine/tensors/batch_check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

/// The sums of one micro-batch.
struct BatchSums {
  double loss = 0;
  double label_loss = 0;  // without the routers' own
  std::int64_t labels = 0;
  std::int64_t records = 0;
};

void check_sizes(const EvaluateArgs& args) {
  if (args.micro_batch < 1 || args.batches < 0) {
    throw user_error("engine",
                     "evaluate_sums() was asked for {} micro-batches of {} records; give 1 record "
                     "at least, and 0 micro-batches for all",
                     args.batches, args.micro_batch);
  }
}

HostBatch collate(const Dataset& dataset, std::int64_t batch, std::int64_t size) {
  const std::int64_t begin = batch * size;
  std::vector<std::int64_t> records(
      static_cast<std::size_t>(std::min(size, dataset.size() - begin)));
  std::iota(records.begin(), records.end(), begin);
  return dataset.collate(records);
}

}  // namespace

Task<EvalSums> Engine::Impl::evaluate_sums(const Dataset* dataset, EvaluateArgs args) {
  require_between_steps("evaluate_sums()");
  const Stopwatch watch;
  const std::int64_t all = (dataset->size() + args.micro_batch - 1) / args.micro_batch;
  const std::int64_t batches = args.batches == 0 ? all : std::min(all, args.batches);
  const std::int64_t groups = groups_of_ranks();
  std::vector<BatchSums> mine;
  for (std::int64_t round = 0; round * groups < batches; ++round) {
    const std::int64_t number = round * groups + group_of_rank();
    // The model's gathers need every rank: one past the end runs the last micro-batch along.
    const std::int64_t run = std::min(number, batches - 1);
    BatchSums sums;
    auto make = [&] {
      const HostBatch host = collate(*dataset, run, args.micro_batch);
      sums = {.labels = counted_labels(host), .records = host.rows};
      Batch batch = to_tensors(host);
      check_batch(batch, BatchUse::kLoss);
      return batch;
    };
    Batch batch = co_await rank.compute().lane().run(make, "make tensors");
    const at::Tensor loss = co_await infer(std::move(batch), HeadOutput::kBothLosses);
    if (sums.labels > 0) {
      const float* const both = loss.data_ptr<float>();
      const auto labels = static_cast<double>(sums.labels);
      sums.loss = static_cast<double>(both[0]) * labels;
      sums.label_loss = static_cast<double>(both[loss.numel() - 1]) * labels;
    }
    mine.push_back(number < batches && counts_for_group() ? sums : BatchSums());
  }
  const auto bytes = std::as_bytes(std::span(mine));
  const std::vector<std::byte> of_all =
      co_await of_all_ranks(std::vector<std::byte>(bytes.begin(), bytes.end()));
  EvalSums total;
  for (std::size_t round = 0; round < mine.size(); ++round) {
    for (std::size_t r = 0; r < static_cast<std::size_t>(communicator->world_size()); ++r) {
      BatchSums sums;
      std::memcpy(&sums, of_all.data() + (r * mine.size() + round) * sizeof(sums), sizeof(sums));
      total.loss += sums.loss;
      total.label_loss += sums.label_loss;
      total.labels += sums.labels;
      total.records += sums.records;
    }
  }
  total.seconds = watch.elapsed_s();
  co_return total;
}

EvalSums Engine::evaluate_sums(const Dataset& dataset, EvaluateArgs args) {
  check_sizes(args);
  impl_->require_between_steps("evaluate_sums()");
  return impl_->run(&Impl::evaluate_sums, impl_.get(), &dataset, args);
}

Task<EvalSums> Engine::evaluate_sums_on_loop(std::shared_ptr<const Dataset> dataset,
                                             EvaluateArgs args) {
  check_sizes(args);
  const Dataset* const data = dataset.get();
  Impl* const self = impl_.get();
  co_return co_await self->evaluate_sums(data, args);
}

}  // namespace tandem
