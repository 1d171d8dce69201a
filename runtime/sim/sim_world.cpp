#include "runtime/sim/sim_world.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace tandem {

SimWorld::Rank::Rank(std::uint32_t number, Clock& clock)
    : index(number),
      loop({.name = fmt::format("rank {}", number),
            .clock = &clock,
            .spin = Spin::kNever,
            .stall_limit = Duration(0)}) {}

SimWorld::SimWorld(Options options) : options_(options), random_(options.seed) {
  Random speeds = random_.fork("speeds");
  for (std::uint32_t i = 0; i < options.ranks; ++i) {
    ranks_.push_back(std::make_unique<Rank>(i, clock_));
    ranks_.back()->operation_time = Duration(speeds.between(300, 1500));
  }
}

SimWorld::~SimWorld() = default;

SimWorld::End SimWorld::run(const std::function<bool()>& done) {
  while (!done()) {
    if (operations_ >= options_.max_operations || elapsed() > options_.limit) {
      return End::kTimeUp;
    }
    for (const auto& rank : ranks_) {
      go_on_waiting(*rank);
    }
    call_due_events();
    if (Rank* rank = pick_ready_rank()) {
      step(*rank);
      continue;
    }
    const TimePoint next =
        agenda_.empty() ? next_rank_ : std::min(next_rank_, agenda_.front().time);
    if (next == TimePoint::max()) {
      return End::kStuck;
    }
    clock_.advance(std::max(next - now(), Duration(0)));
  }
  return End::kDone;
}

// Up to now, which may be later than each step of its plan.
void SimWorld::go_on_waiting(Rank& rank) {
  const std::int64_t now_ns = now().time_since_epoch().count();
  if (!rank.alive || rank.busy_until > now() || rank.loop.has_ready_ops()) {
    return;
  }
  if (!std::exchange(rank.waits, true)) {
    rank.plan =
        rank.expected.begin(now_ns, true, rank.loop.next_deadline().time_since_epoch().count());
    if (rank.plan.sleep_until_ns != 0 || rank.plan.spin_until_ns == 0) {
      rank.loop.fall_asleep();
    }
  }
  if (rank.plan.sleep_until_ns != 0 && now_ns >= rank.plan.sleep_until_ns) {
    rank.loop.stop_sleeping();
    rank.expected.overslept(rank.plan.sleep_until_ns);
    rank.plan.sleep_until_ns = 0;
  }
  if (rank.plan.sleep_until_ns == 0 && rank.plan.spin_until_ns != 0 &&
      now_ns >= rank.plan.spin_until_ns) {
    rank.loop.fall_asleep();
    rank.expected.spun(rank.plan.spin_until_ns, rank.plan.spin_until_ns, false);
    rank.plan.spin_until_ns = 0;
  }
}

void SimWorld::end_wait(Rank& rank, TimePoint now) {
  if (!std::exchange(rank.waits, false)) {
    return;
  }
  const std::int64_t now_ns = now.time_since_epoch().count();
  if (rank.plan.sleep_until_ns == 0 && rank.plan.spin_until_ns != 0) {
    rank.expected.spun(now_ns, now_ns, true);
  }
  rank.expected.end(now_ns);
}

void SimWorld::call_due_events() {
  while (!agenda_.empty() && agenda_.front().time <= now()) {
    std::pop_heap(agenda_.begin(), agenda_.end());
    Event event = std::move(agenda_.back());
    agenda_.pop_back();
    if (ranks_[event.rank]->alive) {
      event.call();
    } else {
      of_dead_.push_back(std::move(event));
    }
  }
}

SimWorld::Rank* SimWorld::pick_ready_rank() {
  ready_.clear();
  next_rank_ = TimePoint::max();
  for (const auto& rank : ranks_) {
    if (!rank->alive) {
      continue;
    }
    const TimePoint wanted = rank->loop.has_ready_ops() ? now() : rank->loop.next_deadline();
    const TimePoint next = std::max(wanted, rank->busy_until);
    if (next <= now()) {
      ready_.push_back(rank.get());
    }
    next_rank_ = std::min(next_rank_, next);
  }
  return ready_.empty() ? nullptr : ready_[random_.below(ready_.size())];
}

void SimWorld::step(Rank& rank) {
  end_wait(rank, now());
  const std::size_t count = rank.loop.run_ready(1 + random_.below(8));
  operations_ += count;
  rank.busy_until = now() + rank.operation_time * static_cast<std::int64_t>(count);
  note("runs", rank.index, count);
}

void SimWorld::after(Duration delay, std::uint32_t rank, std::function<void()> event) {
  agenda_.push_back({now() + std::max(delay, Duration(0)), random_.next(), rank, std::move(event)});
  std::push_heap(agenda_.begin(), agenda_.end());
}

void SimWorld::slow_down(std::uint32_t rank, double factor) noexcept {
  Duration& time = ranks_[rank]->operation_time;
  time = Duration(static_cast<std::int64_t>(static_cast<double>(time.count()) * factor));
  note("is slow", rank, static_cast<std::uint64_t>(time.count()));
}

void SimWorld::pause(std::uint32_t rank, Duration duration) noexcept {
  ranks_[rank]->busy_until = std::max(ranks_[rank]->busy_until, now() + duration);
  note("pauses", rank, static_cast<std::uint64_t>(duration.count()));
}

void SimWorld::kill(std::uint32_t rank) {
  if (std::exchange(ranks_[rank]->alive, false)) {
    note("dies", rank);
    for (const auto& listener : death_listeners_) {
      listener(rank);
    }
  }
}

void SimWorld::on_death(std::function<void(std::uint32_t)> listener) {
  death_listeners_.push_back(std::move(listener));
}

void SimWorld::bury(std::uint32_t rank) {
  if (std::exchange(ranks_[rank]->alive, true)) {
    return;
  }
  note("is buried", rank);
  std::vector<Event> late = std::exchange(of_dead_, {});
  for (Event& event : late) {
    if (event.rank == rank) {
      after(Duration(0), rank, std::move(event.call));
    } else {
      of_dead_.push_back(std::move(event));
    }
  }
}

}  // namespace tandem
