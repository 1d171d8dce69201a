// engine/run/evaluator.hpp — forward without a backward: the loss or the logits of a batch, and the
// loss over a whole data set.
//
// Micro-batch i of a data set is made of the records [i * size, (i + 1) * size) and runs on rank
// i % world, or on the ranks of group i % groups where ranks share rows. Its loss is a function of
// these records and the weights; the losses are added up in the order of i on every rank. So the
// sums have the same bits on any number of ranks.
// Thread rule: the loop's thread. Between steps.
#pragma once

#include "engine/run/all_ranks.hpp"
#include "engine/run/row_groups.hpp"
#include "engine/run/tensor_rank.hpp"
#include "engine/types/evaluation.hpp"

namespace tandem {

class Dataset;

/// Throws user_error for sizes that make no sense.
void check_sizes(const EvaluateArgs& args);

class Evaluator {
 public:
  /// All but `groups` outlive it.
  Evaluator(TensorRank& tensors, TrainStep& step, AllRanks& ranks, RowGroups groups)
      : tensors_(tensors), step_(step), ranks_(ranks), groups_(groups) {}

  /// Returns the loss or the logits of `batch`, in host memory. A collective where weights are
  /// gathered.
  Task<at::Tensor> infer(Batch batch, HeadOutput output);
  /// Likewise the losses of a whole data set. A collective.
  Task<EvalSums> sums(const Dataset* dataset, EvaluateArgs args);

 private:
  TensorRank& tensors_;
  TrainStep& step_;
  AllRanks& ranks_;
  RowGroups groups_;
};

}  // namespace tandem
