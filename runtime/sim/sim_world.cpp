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
    rank_of_[&ranks_.back()->loop] = ranks_.back().get();
  }
}

SimWorld::~SimWorld() = default;

SimWorld::End SimWorld::run(const std::function<bool()>& done) {
  const detail::TappedWakes tapped(*this);
  for (const auto& rank : ranks_) {
    touch(*rank);  // who knows what was done to it since
  }
  while (!done()) {
    if (operations_ >= options_.max_operations || elapsed() > options_.limit) {
      return End::kTimeUp;
    }
    look_at_ranks();
    call_due_events();
    look_at_ranks();
    if (!ready_.empty()) {
      step(take_ready_rank());
      continue;
    }
    const TimePoint event = agenda_.empty() ? TimePoint::max() : agenda_.front().time;
    const TimePoint next = std::min(earliest_turn(), event);
    if (next == TimePoint::max()) {
      require_none_missed();
      return End::kStuck;
    }
    clock_.advance(std::max(next - now(), Duration(0)));
  }
  return End::kDone;
}

void SimWorld::woken(EventLoop& loop) noexcept {
  if (const auto found = rank_of_.find(&loop); found != rank_of_.end()) {
    touch(*found->second);
  }
}

void SimWorld::touch(Rank& rank) noexcept {
  if (!std::exchange(rank.is_touched, true)) {
    touched_.push_back(&rank);
  }
}

/// At those that may have something to do now.
void SimWorld::look_at_ranks() {
  std::erase_if(spinning_, [](const Rank* rank) { return !rank->spins(); });
  for (Rank* rank : spinning_) {
    if (rank->loop.has_ready_ops()) {
      touch(*rank);
    }
  }
  while (earliest_turn() <= now()) {
    touch(*looks_.front().rank);
    looks_.front().rank->next_turn_at = TimePoint::max();
  }
  for (std::size_t i = 0; i < touched_.size(); ++i) {
    look_at(*touched_[i]);
  }
  touched_.clear();
}

/// When the next rank has something to do or goes on waiting in another way, if it is not woken.
TimePoint SimWorld::earliest_turn() {
  while (!looks_.empty() && looks_.front().time != looks_.front().rank->next_turn_at) {
    std::pop_heap(looks_.begin(), looks_.end());
    looks_.pop_back();
  }
  return looks_.empty() ? TimePoint::max() : looks_.front().time;
}

void SimWorld::look_at(Rank& rank) {
  rank.is_touched = false;
  const bool may_run = rank.alive && rank.busy_until <= now();
  const bool is_ready =
      may_run && (rank.loop.has_ready_ops() || rank.loop.next_deadline() <= now());
  if (is_ready != std::exchange(rank.is_ready, is_ready)) {
    if (is_ready) {
      ready_.push_back(&rank);
    } else {
      std::erase(ready_, &rank);
    }
  }
  TimePoint next = TimePoint::max();
  if (may_run && !is_ready) {
    const bool spun = rank.spins();
    go_on_waiting(rank);
    if (rank.spins() && !spun) {
      spinning_.push_back(&rank);
    }
    next = rank.loop.next_deadline();
    for (const std::int64_t until_ns : {rank.plan.sleep_until_ns, rank.plan.spin_until_ns}) {
      if (until_ns != 0) {
        next = std::min(next, TimePoint(Duration(until_ns)));
      }
    }
  } else if (rank.alive && !is_ready) {
    next = rank.busy_until;
  }
  if (next != std::exchange(rank.next_turn_at, next) && next != TimePoint::max()) {
    looks_.push_back({next, &rank});
    std::push_heap(looks_.begin(), looks_.end());
  }
}

void SimWorld::require_none_missed() const {
  for (const auto& rank : ranks_) {
    TANDEM_CHECK(!rank->alive || !rank->loop.has_ready_ops(),
                 "an event posts to its own rank's loop, or as another thread may");
  }
}

// Up to now, which may be later than each step of its plan.
void SimWorld::go_on_waiting(Rank& rank) {
  const std::int64_t now_ns = now().time_since_epoch().count();
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
    if (Rank& rank = *ranks_[event.rank]; rank.alive) {
      event.call();
      touch(rank);
    } else {
      of_dead_.push_back(std::move(event));
    }
  }
}

SimWorld::Rank& SimWorld::take_ready_rank() {
  const std::size_t place = random_.below(ready_.size());
  Rank& rank = *std::exchange(ready_[place], ready_.back());
  ready_.pop_back();
  rank.is_ready = false;
  return rank;
}

void SimWorld::before_turn(std::uint32_t rank, std::uint64_t turn, std::function<void()> event) {
  ranks_[rank]->event_turn = turn;
  ranks_[rank]->event = std::move(event);
}

void SimWorld::step(Rank& rank) {
  if (rank.turns++ == rank.event_turn) {
    rank.event();
    if (!rank.alive) {
      return;
    }
  }
  end_wait(rank, now());
  const std::size_t count = rank.loop.run_ready(1 + random_.below(8));
  operations_ += count;
  rank.busy_until = now() + rank.operation_time * static_cast<std::int64_t>(count);
  note("runs", rank.index, count);
  touch(rank);
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
  touch(*ranks_[rank]);
  note("pauses", rank, static_cast<std::uint64_t>(duration.count()));
}

void SimWorld::kill(std::uint32_t rank) {
  if (std::exchange(ranks_[rank]->alive, false)) {
    touch(*ranks_[rank]);
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
  touch(*ranks_[rank]);
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
