#include "actors/optimizer/cpu_optimizer.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "actors/kernels/reduce.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

CpuOptimizer::CpuOptimizer(Options options)
    : Actor("optimizer"),
      options_(std::move(options)),
      pool_(options_.pool, options_.chunk_elements, options_.slice_chunks),
      runner_queues_({{.runner = &pool_}}),
      jobs_(options_.units.size()),
      directed_(options_.units.size()),
      holds_(options_.units.size()) {
  TANDEM_CHECK(options_.chunk_elements > 0 && options_.chunk_elements % kNormTile == 0,
               "chunks end at block boundaries");
  for (const Unit& unit : options_.units) {
    UpdateRunner* runner = unit.runner != nullptr ? unit.runner : &pool_;
    const auto runner_queue = std::ranges::find(runner_queues_, runner, &RunnerQueue::runner);
    queue_of_.push_back(static_cast<std::size_t>(runner_queue - runner_queues_.begin()));
    if (runner_queue == runner_queues_.end()) {
      runner_queues_.push_back({.runner = runner});
    }
  }
  for (RunnerQueue& runner_queue : runner_queues_) {
    runner_queue.queue.reserve(options_.units.size());
  }
}

// ---- what is asked for

Task<> CpuOptimizer::handle(UpdateUnit update) {
  TANDEM_CHECK_LT(update.unit, jobs_.size(), "only units that were handed in are updated");
  if (jobs_[update.unit].chunks == 0) {
    begin(update);
    co_return;
  }
  TANDEM_CHECK(jobs_[update.unit].update.speculative && !update.speculative &&
                   jobs_[update.unit].update.new_version == update.new_version,
               "a unit is updated once per version");
  co_await confirm(update);
}

void CpuOptimizer::handle(DirectUnit request, ReplyTo<DirectUnit> reply) {
  TANDEM_CHECK_LT(request.unit, jobs_.size(), "only units that were handed in are updated");
  TANDEM_CHECK(jobs_[request.unit].chunks == 0 && request.direction != nullptr,
               "a direction is found before the unit's update is asked for");
  jobs_[request.unit] = {.update = {.unit = request.unit, .deadline = request.deadline},
                         .arrival = arrivals_++,
                         .chunks = chunks_of(request.unit),
                         .directs = request};
  directed_[request.unit] = std::move(reply);
  ++directing_;
  enqueue(request.unit);
}

void CpuOptimizer::begin(UpdateUnit update) {
  TANDEM_CHECK(!update.speculative || options_.units[update.unit].state.has_shadow(),
               "only a unit with a shadow is updated ahead of the verdict");
  jobs_[update.unit] = {
      .update = update,
      .arrival = arrivals_++,
      .pass = update.speculative ? UpdatePass::kSpeculative : UpdatePass::kInPlace,
      .chunks = chunks_of(update.unit)};
  update.speculative ? ++speculative_ : ++counters_.queued;
  counters_.queued_max = std::max(counters_.queued_max, counters_.queued);
  enqueue(update.unit);
}

/// The verdict on an update that was asked for ahead of it.
Task<> CpuOptimizer::confirm(UpdateUnit update) {
  Job& job = jobs_[update.unit];
  const bool counts =
      planted(Bug::kRedoForgotten) || (!update.redo && same_constants(update.unit, update.steps));
  job.update = update;
  --speculative_;
  ++counters_.queued;
  counters_.queued_max = std::max(counters_.queued_max, counters_.queued);
  if (job.next_chunk == 0) {
    job.pass = UpdatePass::kInPlace;  // it has not begun, and needs no shadow any more
  } else if (!counts) {
    ++counters_.redone;
    turn(update.unit, UpdatePass::kRedo);
  } else if (job.done == job.chunks) {
    co_await finish(update.unit);
  }
}

void CpuOptimizer::handle(DrainOptimizer, ReplyTo<DrainOptimizer> reply) {
  drains_.push(std::move(reply));
  answer();
}

void CpuOptimizer::handle(RollBackUpdates, ReplyTo<RollBackUpdates> reply) {
  for (std::uint32_t unit = 0; unit < jobs_.size(); ++unit) {
    Job& job = jobs_[unit];
    if (job.chunks == 0 || !job.update.speculative) {
      continue;
    }
    if (job.next_chunk == 0) {
      std::erase(queue_of(unit).queue, unit);
      job = {};
      --speculative_;
    } else {
      turn(unit, UpdatePass::kRollback);
    }
  }
  rollbacks_.push(std::move(reply));
  answer();
}

void CpuOptimizer::answer() {
  while (counters_.queued == 0 && !drains_.empty()) {
    drains_.pop()->send(counters_);
  }
  while (speculative_ == 0 && !rollbacks_.empty()) {
    rollbacks_.pop()->send(counters_);
  }
}

std::size_t CpuOptimizer::waiting_for_verdict() const noexcept {
  return static_cast<std::size_t>(std::ranges::count_if(jobs_, [](const Job& job) {
    return job.chunks > 0 && job.update.speculative && job.done == job.chunks && !job.next;
  }));
}

// ---- holds

std::size_t CpuOptimizer::handle(FreezeUnits) {
  TANDEM_CHECK(speculative_ == 0, "no verdict is open while units are held");
  TANDEM_CHECK(directing_ == 0, "a step has asked for both halves of a joint update before");
  TANDEM_CHECK(held_ == 0, "one checkpoint is written at a time");
  for (std::uint32_t unit = 0; unit < jobs_.size(); ++unit) {
    if (options_.units[unit].state.elements() > 0) {
      ++held_;
      holds_[unit].state = Hold::State::kAsked;
      if (jobs_[unit].chunks == 0) {
        hold(unit);
      }
    }
  }
  return held_;
}

void CpuOptimizer::hold(std::uint32_t unit) {
  Hold& hold = holds_[unit];
  hold.state = Hold::State::kHeld;
  if (auto reply = std::exchange(hold.awaits, std::nullopt)) {
    reply->send(true);
  }
}

void CpuOptimizer::handle(AwaitFrozen request, ReplyTo<AwaitFrozen> reply) {
  Hold& hold = holds_[request.unit];
  if (hold.state == Hold::State::kAsked) {
    hold.awaits = std::move(reply);
  } else {
    reply.send(hold.state == Hold::State::kHeld);
  }
}

void CpuOptimizer::handle(NextWanted, ReplyTo<NextWanted> reply) {
  TANDEM_CHECK(!wants_.has_value(), "one asks at a time for what is wanted");
  wants_ = std::move(reply);
  answer_wanted();
}

void CpuOptimizer::answer_wanted() {
  while (wants_ && !wanted_.empty()) {
    if (const std::uint32_t unit = wanted_.pop(); holds_[unit].state == Hold::State::kHeld) {
      std::exchange(wants_, std::nullopt)->send(unit);
    }
  }
  if (wants_ && held_ == 0) {
    std::exchange(wants_, std::nullopt)->send(std::nullopt);
  }
}

void CpuOptimizer::handle(UnfreezeUnit end) {
  Hold& hold = holds_[end.unit];
  TANDEM_CHECK(hold.state == Hold::State::kHeld, "a hold ends once");
  hold.state = Hold::State::kNone;
  --held_;
  if (jobs_[end.unit].chunks > 0) {  // it waited
    hold.kept_waiting_until = EventLoop::current().now();
    enqueue(end.unit);
  }
  answer_wanted();
}

// ---- passes and slices

std::size_t CpuOptimizer::chunks_of(std::size_t unit) const noexcept {
  const std::size_t elements = options_.units[unit].state.elements();
  return std::max<std::size_t>(1,
                               (elements + options_.chunk_elements - 1) / options_.chunk_elements);
}

bool CpuOptimizer::same_constants(std::size_t unit, const UpdateStep* steps) const {
  const UpdateStep* before = jobs_[unit].update.steps;
  return std::ranges::all_of(options_.units[unit].state.ranges, [&](const UpdateRange& range) {
    return before[range.group] == steps[range.group];
  });
}

/// An update that was under way ahead of the verdict goes on as `pass`, once its slices are
/// through.
void CpuOptimizer::turn(std::uint32_t unit, UpdatePass pass) {
  std::erase(queue_of(unit).queue, unit);
  Job& job = jobs_[unit];
  if (job.done == job.next_chunk) {
    begin_pass(unit, pass);
  } else {
    job.next = pass;
  }
}

void CpuOptimizer::begin_pass(std::uint32_t unit, UpdatePass pass) {
  Job& job = jobs_[unit];
  job.speculative_chunks = job.next_chunk;
  job.pass = pass;
  job.next.reset();
  job.chunks = pass == UpdatePass::kRollback ? job.speculative_chunks : chunks_of(unit);
  job.next_chunk = 0;
  job.done = 0;
  enqueue(unit);
}

void CpuOptimizer::enqueue(std::uint32_t unit) {
  if (holds_[unit].state == Hold::State::kHeld) {
    wanted_.push(std::uint32_t{unit});
    answer_wanted();
    return;
  }
  RunnerQueue& runner_queue = queue_of(unit);
  runner_queue.queue.push_back(unit);
  // A lone unit fills the runner's pipeline, too.
  const std::size_t slice = runner_queue.runner->slice_chunks();
  for (std::size_t chunk = jobs_[unit].next_chunk;
       chunk < jobs_[unit].chunks && runner_queue.workers < runner_queue.runner->slices_under_way();
       chunk += slice) {
    ++runner_queue.workers;
    scope().spawn("optimizer slices", &CpuOptimizer::work, this, queue_of_[unit]);
  }
}

CpuOptimizer::Job* CpuOptimizer::most_urgent(const RunnerQueue& runner_queue) {
  const auto urgency = [this](std::uint32_t unit) {
    const Job& job = jobs_[unit];
    const bool yields = !(job.update.speculative && job.next_chunk > 0);
    return std::tuple(yields, job.update.deadline, job.arrival);
  };
  const auto best = std::ranges::min_element(runner_queue.queue, {}, urgency);
  return best == runner_queue.queue.end() ? nullptr : &jobs_[*best];
}

/// Takes slices of a queue until none is left. As many of these tasks as its runner wants run while
/// there is work.
Task<> CpuOptimizer::work(std::size_t queue_number) {
  RunnerQueue& runner_queue = runner_queues_[queue_number];
  while (Job* job = most_urgent(runner_queue)) {
    const std::uint32_t unit = job->update.unit;
    const bool starts =
        job->next_chunk == 0 && job->speculative_chunks == 0 && job->directs.direction == nullptr;
    const std::size_t before = job->next_chunk;
    const UpdateSlice slice = take_slice(runner_queue, *job);
    const std::size_t chunks = job->next_chunk - before;
    if (starts) {
      co_await options_.units[unit].shard.send(UpdateStarts{job->update.new_version},
                                               scope().stop_token());
    }
    co_await run_slice(runner_queue.runner, slice);
    job->done += chunks;
    if (job->next && job->done == job->next_chunk) {
      begin_pass(unit, *job->next);
    } else if (job->done == job->chunks &&
               (!job->update.speculative || job->pass == UpdatePass::kRollback)) {
      co_await finish(unit);
    }
  }
  --runner_queue.workers;
}

/// The job's next chunks.
UpdateSlice CpuOptimizer::take_slice(RunnerQueue& runner_queue, Job& job) {
  const std::uint32_t unit = job.update.unit;
  const std::size_t first = job.next_chunk;
  // Where the speculative pass has not been there is nothing to do again: the state is the old one.
  const bool untouched = job.pass == UpdatePass::kRedo && first >= job.speculative_chunks;
  const std::size_t limit =
      job.pass == UpdatePass::kRedo && !untouched ? job.speculative_chunks : job.chunks;
  job.next_chunk = std::min(first + runner_queue.runner->slice_chunks(), limit);
  if (job.next_chunk == job.chunks) {
    std::erase(runner_queue.queue, unit);
  }
  const Unit& target = options_.units[unit];
  return {.name = target.name,
          .unit = &target.state,
          .steps = job.update.steps,
          .pass = untouched ? UpdatePass::kInPlace : job.pass,
          .begin = first * options_.chunk_elements,
          .end = std::min(job.next_chunk * options_.chunk_elements, target.state.elements()),
          .direction = job.directs.direction,
          .direction_steps = job.directs.steps};
}

Task<> CpuOptimizer::run_slice(UpdateRunner* runner, UpdateSlice slice) {
  {
    const BusyTime::Working working(busy_);
    co_await runner->run(slice);
  }
  counters_.busy_s = busy_.seconds();
}

Task<> CpuOptimizer::finish(std::uint32_t unit) {
  const Job job = std::exchange(jobs_[unit], {});
  const Unit& done = options_.units[unit];
  if (job.directs.direction != nullptr) {
    --directing_;
    std::exchange(directed_[unit], std::nullopt)->send();
    co_return;
  }
  if (job.pass == UpdatePass::kRollback) {
    --speculative_;
    ++counters_.rolled_back;
    co_await done.shard.send(UpdateRolledBack{job.update.new_version}, scope().stop_token());
  } else {
    if (job.pass == UpdatePass::kSpeculative) {
      commit_speculative(options_.units[unit].state);
      if (planted(Bug::kShadowCommittedTwice)) {
        commit_speculative(options_.units[unit].state);
      }
      ++counters_.speculative;
    }
    if (holds_[unit].state == Hold::State::kAsked) {
      hold(unit);  // before the shard hears of it, and the next update can be asked for
    }
    --counters_.queued;
    ++counters_.updates;
    for (const UpdateRange& range : done.state.ranges) {
      counters_.elements += range.end - range.begin;
    }
    co_await done.shard.send(ParamReady{job.update.new_version}, scope().stop_token());
  }
  answer();
}

}  // namespace tandem
