// actors/cpu_optimizer.cpp — see cpu_optimizer.hpp.
#include "actors/cpu_optimizer.hpp"

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

#include "actors/kernels/reduce.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace {
/// How far a unit's chunks reach.
std::size_t elements_of(const CpuOptimizer::Unit& unit) {
  return unit.ranges.empty() ? 0 : unit.ranges.back().end;
}
}  // namespace

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

void CpuOptimizer::handle(UpdateUnit update) {
  TANDEM_CHECK(update.unit < jobs_.size(), "only units that were handed in are updated");
  Job& job = jobs_[update.unit];
  TANDEM_CHECK(job.chunks == 0, "a unit is updated once per version");
  const std::size_t elements = elements_of(options_.units[update.unit]);
  const std::size_t chunks =
      std::max<std::size_t>(1, (elements + options_.chunk_elements - 1) / options_.chunk_elements);
  job = {.update = update, .arrival = arrivals_++, .chunks = chunks};
  queue_.push_back(update.unit);
  ++counters_.queued;
  counters_.queued_max = std::max(counters_.queued_max, counters_.queued);
  if (workers_ < kSlicesUnderWay) {
    ++workers_;
    scope().spawn("optimizer slices", &CpuOptimizer::work, this);
  }
}

void CpuOptimizer::handle(DrainOptimizer, ReplyTo<DrainOptimizer> reply) {
  if (counters_.queued == 0) {
    reply.send(counters_);
  } else {
    drains_.push(std::move(reply));
  }
}

CpuOptimizer::Job* CpuOptimizer::most_urgent() {
  const auto urgency = [this](std::uint32_t unit) {
    return std::tuple(jobs_[unit].update.deadline, jobs_[unit].arrival);
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
    job->next_chunk += chunks;
    if (job->next_chunk == job->chunks) {
      std::erase(queue_, unit);
    }
    if (first == 0) {
      co_await options_.units[unit].shard.send(UpdateStarts{job->update.new_version},
                                               scope().stop_token());
    }
    co_await run_slice(unit, first, chunks);
    job->done += chunks;
    if (job->done == job->chunks) {
      co_await finish(unit);
    }
  }
  --workers_;
}

Task<> CpuOptimizer::run_slice(std::size_t unit, std::size_t first_chunk, std::size_t chunks) {
  const Unit& target = options_.units[unit];
  const UpdateStep* steps = jobs_[unit].update.steps;
  const std::size_t chunk_elements = options_.chunk_elements;
  enter_slice();
  co_await options_.pool->for_chunks(
      chunks, [&target, steps, first_chunk, chunk_elements](std::size_t chunk) {
        const std::size_t begin = (first_chunk + chunk) * chunk_elements;
        for (const Range& range : target.ranges) {
          const std::size_t first = std::max(range.begin, begin);
          const std::size_t last = std::min(range.end, begin + chunk_elements);
          if (first < last) {
            apply_update(steps[range.group], target.buffers, first, last);
          }
        }
      });
  leave_slice();
}

Task<> CpuOptimizer::finish(std::size_t unit) {
  Job& job = jobs_[unit];
  const std::uint64_t version = job.update.new_version;
  job = {};
  --counters_.queued;
  ++counters_.updates;
  for (const Range& range : options_.units[unit].ranges) {
    counters_.elements += range.end - range.begin;
  }
  co_await options_.units[unit].shard.send(ParamReady{version}, scope().stop_token());
  if (counters_.queued == 0) {
    while (!drains_.empty()) {
      drains_.pop()->send(counters_);
    }
  }
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
