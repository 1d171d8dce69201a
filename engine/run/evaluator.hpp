// engine/run/evaluator.hpp — evaluation without a backward: the loss or the logits of a batch, and
// the loss over a whole data set.
//
// Micro-batch i of a data set is the records [i * size, (i + 1) * size) and runs on rank i % world,
// or on the ranks of group i % groups if ranks share rows. Its loss is a function of these records
// and the weights, and every rank adds the losses in the order of i. So the sums have the same bits
// on any number of ranks.
// Thread rule: the loop's thread, between steps.
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

  /// Returns the loss or the logits of `batch`, in host memory. Collective if weights are gathered.
  Task<at::Tensor> infer(Batch batch, HeadOutput output);
  /// Returns the losses of a whole data set as sums. Collective.
  Task<EvalSums> sums(const Dataset* dataset, EvaluateArgs args);

 private:
  TensorRank& tensors_;
  TrainStep& step_;
  AllRanks& ranks_;
  RowGroups groups_;
};

}  // namespace tandem
