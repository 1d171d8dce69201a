// actors/cpu_optimizer.cpp — see cpu_optimizer.hpp.
#include "actors/cpu_optimizer.hpp"

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

#include "actors/kernels/reduce.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

CpuOptimizer::CpuOptimizer(Options options)
    : Actor("optimizer"), options_(std::move(options)), jobs_(options_.units.size()) {
  TANDEM_CHECK(options_.pool != nullptr, "the optimizer works on a pool");
  TANDEM_CHECK(options_.chunk_elements > 0 && options_.chunk_elements % kNormBlock == 0,
               "chunks end at block borders");
  if (options_.slice_chunks == 0) {
    options_.slice_chunks = 4 * static_cast<std::size_t>(options_.pool->threads());
  }
  queue_.reserve(options_.units.size());
}

// ---- what is asked for ---------------------------------------------------------------------------

Task<> CpuOptimizer::handle(UpdateUnit update) {
  TANDEM_CHECK(update.unit < jobs_.size(), "only units that were handed in are updated");
  if (jobs_[update.unit].chunks == 0) {
    begin(update);
    co_return;
  }
  TANDEM_CHECK(jobs_[update.unit].update.ahead && !update.ahead &&
                   jobs_[update.unit].update.new_version == update.new_version,
               "a unit is updated once per version");
  co_await confirm(update);
}

void CpuOptimizer::begin(UpdateUnit update) {
  TANDEM_CHECK(!update.ahead || options_.units[update.unit].state.has_twin(),
               "only a unit with a twin is updated ahead of the verdict");
  jobs_[update.unit] = {.update = update,
                        .arrival = arrivals_++,
                        .pass = update.ahead ? UpdatePass::kAhead : UpdatePass::kInPlace,
                        .chunks = chunks_of(update.unit)};
  update.ahead ? ++ahead_ : ++counters_.queued;
  counters_.queued_max = std::max(counters_.queued_max, counters_.queued);
  enqueue(update.unit);
}

/// The verdict on an update that was asked for ahead of it.
Task<> CpuOptimizer::confirm(UpdateUnit update) {
  Job& job = jobs_[update.unit];
  const bool counts = !update.again && same_constants(update.unit, update.steps);
  job.update = update;
  --ahead_;
  ++counters_.queued;
  counters_.queued_max = std::max(counters_.queued_max, counters_.queued);
  if (job.next_chunk == 0) {
    job.pass = UpdatePass::kInPlace;  // it has not begun, and needs no twin any more
  } else if (!counts) {
    ++counters_.again;
    turn(update.unit, UpdatePass::kAgain);
  } else if (job.done == job.chunks) {
    co_await finish(update.unit);
  }
}

void CpuOptimizer::handle(DrainOptimizer, ReplyTo<DrainOptimizer> reply) {
  drains_.push(std::move(reply));
  answer();
}

void CpuOptimizer::handle(UndoUpdates, ReplyTo<UndoUpdates> reply) {
  for (std::uint32_t unit = 0; unit < jobs_.size(); ++unit) {
    Job& job = jobs_[unit];
    if (job.chunks == 0 || !job.update.ahead) {
      continue;
    }
    if (job.next_chunk == 0) {
      std::erase(queue_, unit);
      job = {};
      --ahead_;
    } else {
      turn(unit, UpdatePass::kBack);
    }
  }
  undos_.push(std::move(reply));
  answer();
}

void CpuOptimizer::answer() {
  while (counters_.queued == 0 && !drains_.empty()) {
    drains_.pop()->send(counters_);
  }
  while (ahead_ == 0 && !undos_.empty()) {
    undos_.pop()->send(counters_);
  }
}

std::size_t CpuOptimizer::waiting_for_verdict() const noexcept {
  return static_cast<std::size_t>(std::ranges::count_if(jobs_, [](const Job& job) {
    return job.chunks > 0 && job.update.ahead && job.done == job.chunks && !job.next;
  }));
}

// ---- passes and slices ---------------------------------------------------------------------------

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

/// What was under way ahead of the verdict goes on as `pass`, once its slices are through.
void CpuOptimizer::turn(std::uint32_t unit, UpdatePass pass) {
  std::erase(queue_, unit);
  Job& job = jobs_[unit];
  if (job.done == job.next_chunk) {
    begin_pass(unit, pass);
  } else {
    job.next = pass;
  }
}

void CpuOptimizer::begin_pass(std::uint32_t unit, UpdatePass pass) {
  Job& job = jobs_[unit];
  job.ahead_chunks = job.next_chunk;
  job.pass = pass;
  job.next.reset();
  job.chunks = pass == UpdatePass::kBack ? job.ahead_chunks : chunks_of(unit);
  job.next_chunk = 0;
  job.done = 0;
  enqueue(unit);
}

void CpuOptimizer::enqueue(std::uint32_t unit) {
  queue_.push_back(unit);
  if (workers_ < kSlicesUnderWay) {
    ++workers_;
    scope().spawn("optimizer slices", &CpuOptimizer::work, this);
  }
}

CpuOptimizer::Job* CpuOptimizer::most_urgent() {
  const auto urgency = [this](std::uint32_t unit) {
    const Job& job = jobs_[unit];
    const bool yields = !(job.update.ahead && job.next_chunk > 0);
    return std::tuple(yields, job.update.deadline, job.arrival);
  };
  const auto best = std::ranges::min_element(queue_, {}, urgency);
  return best == queue_.end() ? nullptr : &jobs_[*best];
}

/// Takes slices until none is left. Two of these tasks run while there is work.
Task<> CpuOptimizer::work() {
  while (Job* job = most_urgent()) {
    const std::uint32_t unit = job->update.unit;
    const std::size_t first = job->next_chunk;
    const std::size_t chunks = std::min(options_.slice_chunks, job->chunks - first);
    const bool starts = first == 0 && job->ahead_chunks == 0;
    job->next_chunk += chunks;
    if (job->next_chunk == job->chunks) {
      std::erase(queue_, unit);
    }
    if (starts) {
      co_await options_.units[unit].shard.send(UpdateStarts{job->update.new_version},
                                               scope().stop_token());
    }
    co_await run_slice(unit, first, chunks);
    job->done += chunks;
    if (job->next && job->done == job->next_chunk) {
      begin_pass(unit, *job->next);
    } else if (job->done == job->chunks && (!job->update.ahead || job->pass == UpdatePass::kBack)) {
      co_await finish(unit);
    }
  }
  --workers_;
}

Task<> CpuOptimizer::run_slice(std::uint32_t unit, std::size_t first_chunk, std::size_t chunks) {
  const Job& job = jobs_[unit];
  const UpdatedUnit& target = options_.units[unit].state;
  const Name name = options_.units[unit].name;
  const UpdateStep* steps = job.update.steps;
  const UpdatePass pass = job.pass;
  const std::size_t ahead_chunks = job.ahead_chunks;
  const std::size_t chunk_elements = options_.chunk_elements;
  enter_slice();
  co_await options_.pool->for_chunks(chunks, [=, &target](std::size_t i) {
    const TraceSpan span(name);
    const std::size_t chunk = first_chunk + i;
    // Where the pass ahead has not been there is nothing to do again: the state is the old one.
    const bool untouched = pass == UpdatePass::kAgain && chunk >= ahead_chunks;
    run_update_pass(untouched ? UpdatePass::kInPlace : pass, target, steps, chunk * chunk_elements,
                    (chunk + 1) * chunk_elements);
  });
  leave_slice();
}

Task<> CpuOptimizer::finish(std::uint32_t unit) {
  const Job job = std::exchange(jobs_[unit], {});
  const Unit& done = options_.units[unit];
  if (job.pass == UpdatePass::kBack) {
    --ahead_;
    ++counters_.undone;
    co_await done.shard.send(UpdateUndone{job.update.new_version}, scope().stop_token());
  } else {
    if (job.pass == UpdatePass::kAhead) {
      commit_pass_ahead(options_.units[unit].state);
      ++counters_.ahead;
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

void CpuOptimizer::enter_slice() {
  if (slices_++ == 0) {
    busy_since_ = EventLoop::current().now();
  }
}

void CpuOptimizer::leave_slice() {
  if (--slices_ == 0) {
    counters_.busy_s +=
        std::chrono::duration<double>(EventLoop::current().now() - busy_since_).count();
  }
}

}  // namespace tandem
