#include "engine/step/train_step.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "runtime/flight.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

namespace {
// An ask that takes longer has waited for its answer.
constexpr double kAskS = 100e-6;

/// When inputs that were asked for were there, if that was waited for; else they were before.
TimePoint end_of_wait(TimePoint asked, TimePoint now) {
  return std::chrono::duration<double>(now - asked).count() < kAskS ? TimePoint{} : now;
}

/// Whether what the updates multiply gradients by, and what comes of it, is finite in fp32.
bool can_be_applied(double norm, const TrainStep::Update& update) {
  constexpr double kMost = std::numeric_limits<float>::max();
  const double applied =
      update.gradient_clipping > 0 ? std::min(norm, update.gradient_clipping) : norm;
  return applied <= kMost && 1 / update.loss_scale <= kMost;
}
}  // namespace

TrainStep::TrainStep(Rank& rank)
    : rank_(rank),
      layout_(rank.layout()),
      compute_(rank.compute()),
      options_(rank.options().shape.engine),
      speculation_(may_speculate(options_) && !updates_jointly(layout_.shape.update.kind)
                       ? options_.speculate
                       : Speculate::kOff),
      gatherer_(rank.shards(), layout_.classes.weights.pools(), rank.scope(),
                options_.overlap != Overlap::kOff),
      boundaries_(rank.boundaries()),
      inference_plan_(StepPlan::inference(layout_.model, layout_.classes)),
      gradient_slot_(layout_.model.units.size()),
      reduced_(layout_.model.units.size()),
      visit_times_(std::make_shared<VisitTimes>(layout_.model.segments.size())),
      deadlines_(inference_plan_.first_visits(layout_.model.units.size())),
      gradient_ticket_(layout_.classes.gradients.pools()),
      directions_(rank, gatherer_, reduction_order_, update_order()) {
  for (const SegmentSpec& segment : layout_.model.segments) {
    forward_names_.emplace_back("forward " + segment.name);
    backward_names_.emplace_back("backward " + segment.name);
    infer_names_.emplace_back("infer " + segment.name);
  }
}

void TrainStep::begin(std::int64_t number, std::size_t micro_steps, const Update& expected) {
  TANDEM_CHECK(micro_steps > 0, "a step has micro-batches");
  TANDEM_CHECK_EQ(reductions_open_, std::size_t{0}, "the step before has awaited its reductions");
  if (micro_steps != micro_steps_) {
    plan_ = StepPlan::training(layout_.model, layout_.classes, micro_steps);
    micro_steps_ = micro_steps;
  }
  trace::begin_step(number);
  flight::record({.what = flight::Kind::kStep, .number = static_cast<std::uint64_t>(number)});
  visit_ = 0;
  exposure_ = {};
  visit_times_->reset();
  backwards_ = 0;
  forwards_ = 0;
  losses_.clear();
  expected_ = expected;
  bad_.reset();
  if (planted(Bug::kConstantsSetEarly)) {
    set_constants(speculative_steps_, expected_, 1);
  }
  gatherer_.begin(plan_, version_);
}

Task<> TrainStep::forward(std::shared_ptr<MicroBatch> batch) {
  TANDEM_CHECK(forwards_ < micro_steps_, "a step has the micro-batches that it was begun with");
  TANDEM_CHECK_EQ(forwards_, backwards_, "a micro-batch's backward comes before the next forward");
  if (forwards_ - losses_.size() == compute_.losses().size()) {
    co_await losses();  // the buffer of losses is full
  }
  micro_ = std::move(batch);
  const std::size_t segments = layout_.model.segments.size();
  float* const loss = &compute_.losses()[forwards_ % compute_.losses().size()];
  const TimePoint asked = rank_.loop().now();
  for (std::size_t s = 0; s < segments; ++s, ++visit_) {
    const std::vector<std::byte*> slots = co_await gathered(visit_);
    const TimePoint room_there = co_await boundaries_of_forward(s);
    const TimePoint inputs_there = std::max({asked, gatherer_.there_since(visit_), room_there});
    auto work = [this, s, slots, inputs_there, loss, micro = micro_, at = &plan_.visits[visit_],
                 last = s + 1 == segments] {
      const SegmentTime time = compute_.time_of(s, Phase::kForward, micro->extents(), inputs_there);
      if (boundaries_ != nullptr && s >= 2) {
        boundaries_->free(s - 2, *micro);
      }
      micro->forward(s, {.uses = at->uses, .weights = slots});
      if (boundaries_ != nullptr && !last) {
        boundaries_->made(s + 1, *micro);
      }
      if (last) {
        micro->read_loss(loss);
      }
    };
    if (planted(Bug::kSlotFreedBeforeVisit)) {
      gatherer_.release(visit_);
    }
    co_await run_visit(forward_names_[s], std::move(work), slots, s, Phase::kForward);
    if (boundaries_ != nullptr && s + 1 < segments) {
      boundaries_->leave(s + 1);
      if (options_.overlap == Overlap::kOff) {
        const TimePoint issued = rank_.loop().now();
        co_await boundaries_->copied(s + 1);
        charge_boundaries(issued);
      }
    }
    if (!planted(Bug::kSlotFreedBeforeVisit)) {
      gatherer_.release(visit_);
    }
  }
  ++forwards_;
}

Task<std::vector<float>> TrainStep::losses() {
  if (losses_.size() < forwards_ && last_queued_) {
    co_await last_queued_->wait();
  }
  while (losses_.size() < forwards_) {
    losses_.push_back(compute_.losses()[losses_.size() % compute_.losses().size()]);
  }
  co_return losses_;
}

Task<> TrainStep::run_visit(Name what, std::function<void()> work, std::vector<std::byte*> slots,
                            std::size_t segment, Phase phase) {
  const double busy_s = compute_.busy_s();
  co_await compute_.run(what, std::move(work));
  last_queued_ = compute_.in_use(slots, {visit_times_, &visit_times_->of(segment, phase)});
  if (!last_queued_) {
    visit_times_->of(segment, phase) += compute_.busy_s() - busy_s;
  }
  if (options_.overlap == Overlap::kOff && last_queued_) {
    co_await last_queued_->wait();
  }
}

Task<> TrainStep::backward(double loss_gradient) {
  if (++backwards_ == micro_steps_ && speculation_.worthwhile()) {
    // Not before: slices of the step before may read its constants until this step's forward had
    // the unit.
    set_constants(speculative_steps_, expected_, 1);
    speculative_ = true;
  }
  TANDEM_CHECK_EQ(backwards_, forwards_, "a backward is of the last forward");
  const TimePoint asked = rank_.loop().now();
  for (std::size_t s = layout_.model.segments.size(); s-- > 0; ++visit_) {
    const Visit& here = plan_.visits[visit_];
    const std::vector<std::byte*> slots = co_await gathered(visit_);
    const TimePoint slots_there = co_await gradient_slots(visit_);
    const TimePoint boundary_there = co_await boundaries_of_backward(s);
    const TimePoint inputs_there =
        std::max({asked, gatherer_.there_since(visit_), slots_there, boundary_there});
    auto work = [this, s, slots, inputs_there, loss_gradient, gradients = gradient_slot_,
                 micro = micro_, at = &here] {
      const SegmentTime time =
          compute_.time_of(s, Phase::kBackward, micro->extents(), inputs_there);
      if (boundaries_ != nullptr) {
        boundaries_->take(s, *micro);
      }
      micro->backward(s, {.uses = at->uses, .weights = slots, .gradients = gradients},
                      loss_gradient);
    };
    std::vector<std::byte*> used = slots;
    for (const UnitUse& use : here.uses) {
      if (use.last_gradient) {
        used.push_back(gradient_slot_[use.unit]);
      }
    }
    co_await run_visit(backward_names_[s], std::move(work), std::move(used), s, Phase::kBackward);
    if (boundaries_ != nullptr) {
      boundaries_->gone(s);
    }
    gatherer_.release(visit_);
    for (const UnitUse& use : here.uses) {
      if (!use.last_gradient) {
        continue;
      }
      ++reductions_open_;
      no_reduction_open_.reset();
      rank_.scope().spawn("reduce", &TrainStep::reduce_in_background, this, use, here.micro_step,
                          reduction_order_[use.communicator]);
      reduction_order_[use.communicator] += planted(Bug::kReductionOrderKept) ? 0 : use.blocks;
      if (options_.overlap == Overlap::kOff) {
        co_await reductions_done();
      }
    }
  }
  if (const auto bad = micro_->bad_activation(); bad && !bad_) {
    bad_ = {.micro_step = backwards_ - 1, .activation = *bad};
  }
}

Task<Verdict> TrainStep::finish(Update update) {
  TANDEM_CHECK_EQ(backwards_, micro_steps_, "a verdict is on all micro-batches of the step");
  TANDEM_CHECK_EQ(visit_, plan_.visits.size(), "a verdict follows the last visit of the plan");
  const flight::Span verdict(flight::Kind::kVerdict);
  if (!planted(Bug::kVerdictBeforeReductions)) {
    co_await reductions_done();
  }
  for (std::size_t pool = 0; pool < gradient_ticket_.size() && !planted(Bug::kGradientTicketsKept);
       ++pool) {
    gradient_ticket_[pool] += plan_.gradient_tickets[pool];
  }
  GlobalNorm norm = co_await global_norm();
  norm.value /= update.loss_scale;
  if (norm.finite() && !can_be_applied(norm.value, update)) {
    norm.bad_parameter = fmt::format("all parameters, divided by the scale {}", update.loss_scale);
  }
  if (!norm.finite()) {
    speculation_.record(true);
    const bool speculated = speculative_;
    co_await roll_back();
    co_return Verdict{StepOutcome::kSkip, norm, speculated};
  }
  if (directions_.of_muon()) {
    norm.value = co_await muon_norm(&update);
  }
  // Clipping: g *= min(1, limit / (norm + 1e-6)). Like the loss scale it is undone inside the
  // update's own pass.
  double clip = 1;
  if (update.gradient_clipping > 0) {
    clip = std::min(1.0, update.gradient_clipping / (norm.value + 1e-6));
  }
  const bool forced = missed_by_force();
  speculation_.record(clip != 1 || forced);
  if (!planted(Bug::kConstantsNotAwaited)) {
    co_await updates_done();  // a unit that no segment uses may still be at the step before
  }
  set_constants(update_steps_, update, clip);
  if (directions_.of_lamb()) {
    co_await find_lamb_directions(&update, clip);
  }
  const bool missed = speculative_ && (forced || update_steps_ != speculative_steps_);
  trace::instant(missed ? Name("verdict: redo") : Name("verdict"));
  co_await issue_updates(missed);
  const bool speculated = std::exchange(speculative_, false);
  if (options_.overlap < Overlap::kOffload) {
    const TimePoint start = rank_.loop().now();
    co_await updates_done();
    TimePoint held_back = start;
    for (std::size_t unit = 0; unit < reduced_.size(); ++unit) {
      held_back = std::max(held_back, rank_.optimizer().held_back_until(unit));
    }
    charge_updates(start, rank_.loop().now(), held_back);
  }
  co_return Verdict{missed ? StepOutcome::kRollback : StepOutcome::kCommit, norm, speculated};
}

Task<> TrainStep::drain() {
  co_await roll_back();
  co_await updates_done();
}

Task<> TrainStep::infer(std::shared_ptr<MicroBatch> batch) {
  gatherer_.begin(inference_plan_, version_);
  for (std::size_t s = 0; s < layout_.model.segments.size(); ++s) {
    const std::vector<std::byte*> slots = co_await gatherer_.acquired(s);
    const TimePoint inputs_there = gatherer_.there_since(s);
    auto work = [this, s, slots, inputs_there, batch, at = &inference_plan_.visits[s]] {
      const SegmentTime time = compute_.time_of(s, Phase::kForward, batch->extents(), inputs_there);
      batch->infer(s, {.uses = at->uses, .weights = slots});
    };
    co_await run_visit(infer_names_[s], std::move(work), slots, s, Phase::kForward);
    gatherer_.release(s);
  }
  if (last_queued_) {
    co_await last_queued_->wait();
  }
}

// ---- parts ----

Task<std::vector<std::byte*>> TrainStep::gathered(std::size_t v) {
  const TimePoint start = rank_.loop().now();
  const LaneWait waits(rank_.comms_log(), CommSequence::kGathers, rank_.loop());
  std::vector<std::byte*> slots = co_await gatherer_.acquired(v);
  // The part of the wait before the newest weights existed is the optimizer's, the rest the
  // gather's.
  TimePoint ready = start;
  TimePoint held_back = start;
  bool on_nvme = false;          // the state of the last one that was ready
  bool gathers_of_nvme = false;  // weights of any
  for (const UnitUse& use : plan_.visits[v].uses) {
    if (const TimePoint since = rank_.shards()[use.unit]->version_since(); since > ready) {
      ready = since;
      on_nvme = rank_.layout().placement_of(use.unit) == StatePlacement::kNvme;
    }
    held_back = std::max(held_back, rank_.optimizer().held_back_until(use.unit));
    gathers_of_nvme = gathers_of_nvme || rank_.layout().sizes.units[use.unit].weights_on_nvme;
  }
  const TimePoint now = rank_.loop().now();
  const double optimizer_s = exposure_.optimizer_s;
  charge_updates(start, std::min(ready, now), held_back);
  exposure_.disk_s += on_nvme ? exposure_.optimizer_s - optimizer_s : 0;
  const double gather_s = std::chrono::duration<double>(now - std::min(ready, now)).count();
  exposure_.gather_s += gather_s;
  exposure_.disk_s += gathers_of_nvme ? gather_s : 0;
  co_return slots;
}

double TrainStep::seconds_since(TimePoint start) const {
  return std::chrono::duration<double>(rank_.loop().now() - start).count();
}

/// A wait for updates, from `start` to `ready`: until `held_back` a checkpoint kept them waiting.
void TrainStep::charge_updates(TimePoint start, TimePoint ready, TimePoint held_back) {
  held_back = std::clamp(held_back, start, ready);
  exposure_.checkpoint_s += std::chrono::duration<double>(held_back - start).count();
  exposure_.optimizer_s += std::chrono::duration<double>(ready - held_back).count();
}

Task<TimePoint> TrainStep::boundaries_of_forward(std::size_t s) {
  if (boundaries_ == nullptr || s < 2) {
    co_return TimePoint{};
  }
  const TimePoint asked = rank_.loop().now();
  if (!planted(Bug::kBoundaryFreedEarly)) {
    co_await boundaries_->left(s - 2);
  }
  charge_boundaries(asked);
  co_return end_of_wait(asked, rank_.loop().now());
}

Task<TimePoint> TrainStep::boundaries_of_backward(std::size_t s) {
  if (boundaries_ == nullptr) {
    co_return TimePoint{};
  }
  const TimePoint asked = rank_.loop().now();
  Task<> arrived = planted(Bug::kBoundaryTakenEarly) ? boundaries_->bring(s, micro_)
                                                     : boundaries_->there(s, micro_);
  co_await std::move(arrived);
  charge_boundaries(asked);
  const TimePoint there = end_of_wait(asked, rank_.loop().now());
  if (s > 0 && options_.overlap != Overlap::kOff) {
    co_await boundaries_->bring(s - 1, micro_);  // on the link behind boundary s
  }
  co_return there;
}

void TrainStep::charge_boundaries(TimePoint asked) {
  TimePoint idle = asked;
  if (compute_.on_gpu()) {
    if (!last_queued_ || !last_queued_->done()) {
      return;  // the device works on what it was given before
    }
    idle = std::max(idle, compute_.idle_since());
  }
  exposure_.activation_s += std::chrono::duration<double>(rank_.loop().now() - idle).count();
}

Task<TimePoint> TrainStep::gradient_slots(std::size_t v) {
  const TimePoint asked = rank_.loop().now();
  const LaneWait waits(rank_.comms_log(), CommSequence::kReductions, rank_.loop());
  for (const UnitUse& use : plan_.visits[v].uses) {
    if (use.first_gradient) {
      const Placed<std::byte> slot = co_await rank_.bucket(use.unit)->address().ask(
          AcquireGradient{gradient_ticket_[use.gradient_pool] + use.gradient_ticket});
      gradient_slot_[use.unit] = slot.memory();
      TANDEM_CHECK(gradient_slot_[use.unit] != nullptr, "an open gradient has a slot");
    }
  }
  exposure_.reduce_s += seconds_since(asked);
  co_return end_of_wait(asked, rank_.loop().now());
}

Task<> TrainStep::reduce_in_background(TrainStep* self, UnitUse use, std::size_t micro_step,
                                       std::uint64_t order) {
  // A failure belongs to the step that awaits the reductions, so it is handed over there.
  try {
    co_await self->reduce(use, micro_step, order);
  } catch (...) {
    self->reduction_failure_ = std::current_exception();
  }
  if (--self->reductions_open_ == 0) {
    self->no_reduction_open_.set();
  }
}

Task<> TrainStep::reduce(UnitUse use, std::size_t micro_step, std::uint64_t order) {
  const bool last = micro_step + 1 == micro_steps_;
  reduced_[use.unit] = co_await rank_.bucket(use.unit)->address().ask(
      GradientReady{micro_step == 0 && !planted(Bug::kFirstGradientAdded), last, order});
  // A gradient that this rank knows to be bad is not worth an update.
  if (speculative_ && last && rank_.memory().has_shadow(use.unit) &&
      reduced_[use.unit].first_bad_element < 0) {
    co_await update_speculatively(use.unit);
  }
}

Task<> TrainStep::reductions_done() {
  const TimePoint asked = rank_.loop().now();
  const LaneWait waits(rank_.comms_log(), CommSequence::kReductions, rank_.loop());
  if (reductions_open_ > 0) {
    co_await no_reduction_open_;
  }
  exposure_.reduce_s += seconds_since(asked);
  if (reduction_failure_) {
    std::rethrow_exception(std::exchange(reduction_failure_, nullptr));
  }
}

Task<GlobalNorm> TrainStep::global_norm() {
  GradientNorm norm;  // bad elements by their position in the units laid end to end
  const std::vector<UnitSpec>& units = layout_.model.units;
  const auto is_divided = [this](const UnitSpec& unit) {
    return layout_.sharding.is_sharded(unit);
  };
  const bool is_shared = std::ranges::any_of(units, is_divided);
  for (std::size_t unit = 0; unit < reduced_.size(); ++unit) {
    if (is_shared && !is_divided(units[unit]) && layout_.sharding.rank != 0) {
      continue;  // the same on all ranks, and counted once
    }
    GradientNorm of_unit = reduced_[unit];
    if (of_unit.first_bad_element >= 0) {
      of_unit.first_bad_element += layout_.flat_begin(unit);
    }
    norm.merge(of_unit);
  }
  if (is_shared) {
    const TimePoint asked = rank_.loop().now();
    const LaneWait waits(rank_.comms_log(), CommSequence::kReductions, rank_.loop());
    norm =
        co_await rank_.collectives().address().ask(AllReduceNorm{reduction_order_[kWorld]++, norm});
    exposure_.reduce_s += seconds_since(asked);
  }
  GlobalNorm global{.value = std::sqrt(norm.sum_of_squares.value())};
  if (norm.first_bad_element >= 0) {
    global.bad_parameter = layout_.parameter_at_flat(norm.first_bad_element);
  }
  co_return global;
}

Task<std::vector<std::byte>> TrainStep::exchange(std::vector<std::byte> mine) {
  TANDEM_CHECK_LE(mine.size(), kExchangeBytes, "an exchange is of a few bytes");
  const LaneWait waits(rank_.comms_log(), CommSequence::kReductions, rank_.loop());
  co_return co_await rank_.collectives().address().ask(
      Exchange{reduction_order_[kWorld]++, std::move(mine)});
}

Task<std::span<const float>> TrainStep::whole_master(std::size_t unit) {
  const PlacedBuffers& now = rank_.optimizer().state_of(unit).buffers;
  co_return co_await whole_of(unit, co_await rank_.loader().master_of(unit, now));
}

Task<std::span<const float>> TrainStep::whole_gradient(std::size_t unit) {
  co_return co_await whole_of(unit, co_await rank_.loader().gradient_of(unit));
}

Task<std::span<const float>> TrainStep::whole_of(std::size_t unit, std::span<const float> slice) {
  TANDEM_CHECK_EQ(slice.size(), layout_.slice_elements(unit), "a whole is made of equal slices");
  const std::size_t world = layout_.sharding.world;
  if (!layout_.sharding.is_sharded(layout_.model.units[unit]) || world == 1) {
    co_return slice;
  }
  std::span<float> whole = rank_.memory().whole_buffer();
  if (whole.empty()) {
    whole_.resize(slice.size() * world);
    whole = whole_;
  } else {
    const std::span<float> own = rank_.memory().slice_buffer().first(slice.size());
    std::ranges::copy(slice, own.begin());
    slice = own;
    whole = whole.first(slice.size() * world);
  }
  co_await rank_.collectives().address().ask(
      AllGather{gatherer_.take_order(),
                {.shard = std::as_bytes(slice).data(),
                 .block = std::as_writable_bytes(whole).data(),
                 .shard_bytes = slice.size_bytes()}});
  co_return std::span<const float>(whole);
}

}  // namespace tandem
