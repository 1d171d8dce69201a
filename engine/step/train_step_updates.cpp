// engine/step/train_step_updates.cpp — the part of TrainStep that directs the optimizer: constants
// and directions, updates before and after the verdict, rollback.
#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/step/train_step.hpp"
#include "runtime/flight.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"
#include "runtime/util/random.hpp"

namespace tandem {

void TrainStep::set_constants(std::vector<UpdateStep>& steps, const Update& update, double clip) {
  TANDEM_CHECK(!update.groups.empty(), "a step has a parameter group");
  steps.clear();
  for (const UpdateConfig& group : update.groups) {
    // A direction has no loss scale in it.
    const double scale = updates_jointly(group.kind) ? clip : clip * (1 / update.loss_scale);
    steps.push_back(UpdateStep::make(group, update.applied_step, scale));
  }
}

Task<double> TrainStep::muon_norm(const Update* update) {
  const TimePoint asked = rank_.loop().now();
  const LaneWait gathers(rank_.comms_log(), CommSequence::kGathers, rank_.loop());
  const LaneWait reductions(rank_.comms_log(), CommSequence::kReductions, rank_.loop());
  co_await updates_done();
  const double norm = co_await directions_.find_muon(update->groups, 1 / update->loss_scale);
  exposure_.optimizer_s += seconds_since(asked);
  co_return norm;
}

Task<> TrainStep::find_lamb_directions(const Update* update, double clip) {
  const TimePoint asked = rank_.loop().now();
  const LaneWait gathers(rank_.comms_log(), CommSequence::kGathers, rank_.loop());
  const LaneWait reductions(rank_.comms_log(), CommSequence::kReductions, rank_.loop());
  co_await directions_.find_lamb(update->groups, update->applied_step,
                                 clip * (1 / update->loss_scale));
  exposure_.optimizer_s += seconds_since(asked);
}

Task<> TrainStep::update_speculatively(std::size_t unit) {
  TANDEM_CHECK(!speculative_steps_.empty(), "an update ahead of the verdict has its constants");
  co_await rank_.optimizer().address().send(UpdateUnit{.unit = static_cast<std::uint32_t>(unit),
                                                       .steps = speculative_steps_.data(),
                                                       .deadline = deadlines_[unit],
                                                       .new_version = version_ + 1,
                                                       .speculative = true});
}

Task<> TrainStep::roll_back() {
  if (std::exchange(speculative_, false) && !planted(Bug::kRollbackForgotten)) {
    co_await rank_.optimizer().address().ask(RollBackUpdates{});
  }
}

Task<> TrainStep::weights_replaced() {
  ++version_;
  for (const auto& shard : rank_.shards()) {
    co_await shard->address().send(UpdateStarts{version_});
    co_await shard->address().send(ParamReady{version_});
  }
}

std::vector<std::uint32_t> TrainStep::update_order() const {
  std::vector<std::uint32_t> order(deadlines_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, {}, [this](std::uint32_t unit) { return deadlines_[unit]; });
  return order;
}

Task<> TrainStep::updates_done() { co_await rank_.optimizer().address().ask(DrainOptimizer{}); }

/// `redo`: updates that were made ahead of the verdict do not count.
Task<> TrainStep::issue_updates(bool redo) {
  version_ += planted(Bug::kVersionKept) ? 0 : 1;
  const flight::Span updates(flight::Kind::kUpdates);
  for (std::size_t unit = 0; unit < reduced_.size(); ++unit) {
    co_await rank_.optimizer().address().send(UpdateUnit{
        .unit = static_cast<std::uint32_t>(unit),
        .steps = directions_.of_lamb() ? directions_.lamb_steps(unit) : update_steps_.data(),
        .deadline = deadlines_[unit],
        .new_version = version_,
        .redo = redo});
  }
}

bool TrainStep::missed_by_force() const { return Random(version_).chance(options_.forced_misses); }

}  // namespace tandem
