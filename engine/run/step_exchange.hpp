// engine/run/step_exchange.hpp — what the ranks tell each other of a step: counts, losses, and the
// labels that their micro-batches have.
//
// Invariant: every rank computes the same from it, in the order of the step's micro-batches, so
// that no bit depends on how many ranks share them.
// Thread rule: the loop's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/checkpoint/checkpointer.hpp"
#include "engine/run/all_ranks.hpp"
#include "engine/run/row_groups.hpp"
#include "engine/tensors/segment.hpp"
#include "engine/types/step_result.hpp"
#include "runtime/compute_lane.hpp"

namespace tandem {

class StepExchange {
 public:
  /// `ranks` and `lane` outlive it. `means_tokens`: a step's loss is the mean of its labels.
  StepExchange(AllRanks& ranks, ComputeLane& lane, RowGroups groups, bool means_tokens)
      : ranks_(ranks), lane_(lane), groups_(groups), means_tokens_(means_tokens) {}

  [[nodiscard]] bool means_tokens() const noexcept { return means_tokens_; }

  /// Before a step on micro-batches of the caller: throws the same user_error on every rank where
  /// their numbers differ (they would wait for each other's gathers for ever), and gives the
  /// micro-batches their shares of the step's labels where these are needed. A collective.
  Task<> agree_on(std::vector<Batch>* batches);

  /// Begins a step.
  void begin();
  /// Counts the step's next micro-batch, and fills in its label_count where that can be known.
  Task<> add(Batch* batch);
  /// The extents of the step's micro-batches so far.
  [[nodiscard]] const std::vector<BatchExtents>& extents() const noexcept { return extents_; }
  /// The share of the last one in the step's labels, where tokens are what is averaged.
  [[nodiscard]] double last_share() const { return loss_shares_.back(); }

  /// The requests that a rank makes of the others in the exchange that ends a step.
  struct Asks {
    bool stop = false;
    bool save = false;
    Checkpointer::Phase checkpoint = Checkpointer::Phase::kIdle;
  };
  struct Shared {
    StepResult result;                          // with the counts and losses of all ranks in it
    std::vector<Checkpointer::Phase> of_saves;  // [rank]
  };
  /// `losses`: of this rank's micro-batches. A collective.
  Task<Shared> share(StepResult result, std::vector<float> losses, Asks asks);

 private:
  /// The figures of a step that a rank tells, beside its losses.
  struct Figures {
    std::int64_t tokens = 0;
    std::int64_t sequences = 0;
    std::int64_t longest = 0;
    std::int64_t unlabelled = 0;  // micro-batches without a label
    Asks asks;
  };

  AllRanks& ranks_;
  ComputeLane& lane_;
  RowGroups groups_;
  bool means_tokens_;
  Figures figures_;                    // of the step in flight
  std::vector<double> loss_shares_;    // [micro-step], where tokens are what is averaged
  std::vector<BatchExtents> extents_;  // [micro-step]
};

}  // namespace tandem
