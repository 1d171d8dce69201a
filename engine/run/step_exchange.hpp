// engine/run/step_exchange.hpp — exchanges a step's figures among the ranks: counts, losses, and
// the labels of their micro-batches.
//
// Invariant: every rank computes the same results, in the order of the step's micro-batches, so
// that no bit depends on the number of ranks.
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

  /// Call it before a step on the caller's micro-batches. Throws the same user_error on every rank
  /// if the ranks have different numbers of micro-batches, because they would wait for each other's
  /// gathers forever. With means_tokens() sets the missing Batch::loss_share of each. Collective.
  Task<> agree_on(std::vector<Batch>* batches);

  /// Begins a step.
  void begin();
  /// Counts the step's next micro-batch, and fills in its label_count if its labels are in host
  /// memory.
  Task<> add(Batch* batch);
  /// The extents of the step's micro-batches so far.
  [[nodiscard]] const std::vector<BatchExtents>& extents() const noexcept { return extents_; }
  /// Returns the last micro-batch's share of the step's labels; only with means_tokens().
  [[nodiscard]] double last_share() const { return loss_shares_.back(); }

  /// A rank's requests to the others, which the exchange at the end of a step carries.
  struct Asks {
    bool stop = false;
    bool save = false;
    Checkpointer::Phase checkpoint = Checkpointer::Phase::kIdle;
  };
  struct Shared {
    StepResult result;                          // includes the counts and losses of all ranks
    std::vector<Checkpointer::Phase> of_saves;  // [rank] phase of its save
  };
  /// Exchanges the step's counts, `losses` (of this rank's micro-batches) and `asks`; fills in the
  /// totals of all ranks in `result`. Collective.
  Task<Shared> share(StepResult result, std::vector<float> losses, Asks asks);

 private:
  /// The figures of a step that a rank sends, beside its losses.
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
  std::vector<double> loss_shares_;    // [micro-step], with means_tokens_
  std::vector<BatchExtents> extents_;  // [micro-step]
};

}  // namespace tandem
