#include "engine/run/evaluator.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/run/data_feed.hpp"
#include "engine/tensors/batch_check.hpp"
#include "engine/types/stopwatch.hpp"
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

HostBatch collate(const Dataset& dataset, std::int64_t batch, std::int64_t size) {
  const std::int64_t begin = batch * size;
  std::vector<std::int64_t> records(
      static_cast<std::size_t>(std::min(size, dataset.size() - begin)));
  std::iota(records.begin(), records.end(), begin);
  return dataset.collate(records);
}

}  // namespace

void check_sizes(const EvaluateArgs& args) {
  if (args.micro_batch < 1 || args.batches < 0) {
    throw user_error("engine",
                     "evaluate_sums() was asked for {} micro-batches of {} records; give 1 record "
                     "at least, and 0 micro-batches for all",
                     args.batches, args.micro_batch);
  }
}

Task<at::Tensor> Evaluator::infer(Batch batch, HeadOutput output) {
  const std::shared_ptr<TensorBatch> inference =
      co_await tensors_.inference(std::move(batch), output);
  co_await step_.infer(inference);
  co_return co_await tensors_.result_of(inference);
}

Task<EvalSums> Evaluator::sums(const Dataset* dataset, EvaluateArgs args) {
  const Stopwatch watch;
  const std::int64_t all = (dataset->size() + args.micro_batch - 1) / args.micro_batch;
  const std::int64_t batches = args.batches == 0 ? all : std::min(all, args.batches);
  std::vector<BatchSums> mine;
  for (std::int64_t round = 0; round * groups_.count < batches; ++round) {
    const std::int64_t number = round * groups_.count + groups_.own;
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
    Batch batch = co_await tensors_.rank().compute().lane().run(make, "make tensors");
    const at::Tensor loss = co_await infer(std::move(batch), HeadOutput::kBothLosses);
    if (sums.labels > 0) {
      const float* const both = loss.data_ptr<float>();
      const auto labels = static_cast<double>(sums.labels);
      sums.loss = static_cast<double>(both[0]) * labels;
      sums.label_loss = static_cast<double>(both[loss.numel() - 1]) * labels;
    }
    mine.push_back(number < batches && groups_.speaks ? sums : BatchSums());
  }
  const std::vector<BatchSums> of_all = co_await ranks_.values(mine);
  EvalSums total;
  for (std::size_t round = 0; round < mine.size(); ++round) {
    for (std::size_t r = 0; r < ranks_.world(); ++r) {
      const BatchSums& sums = of_all[r * mine.size() + round];
      total.loss += sums.loss;
      total.label_loss += sums.label_loss;
      total.labels += sums.labels;
      total.records += sums.records;
    }
  }
  total.seconds = watch.elapsed_s();
  co_return total;
}

}  // namespace tandem
