#include "tests/model/memory.hpp"

#include <fmt/format.h>

#include "tests/model/checker_state.hpp"

namespace tandem::model {
namespace {

bool acquires(std::memory_order order) {
  return order == std::memory_order_acquire || order == std::memory_order_acq_rel;
}
bool releases(std::memory_order order) {
  return order == std::memory_order_release || order == std::memory_order_acq_rel;
}

}  // namespace

Location* Checker::new_location(std::uint64_t value) {
  Location& location = locations_.emplace_back(Location{static_cast<int>(locations_.size())});
  location.stores.push_back({value, {}, now(), step_});
  return &location;
}

void Checker::end_location(Location& location) {
  if (!on_thread()) {
    location.alive = false;
    return;
  }
  point(location, true);
  const auto others = [&](const auto& uses) {
    for (const auto& use : uses) {
      if (!use.event.before(clock())) {
        fail(fmt::format("atomic {} is destroyed under another thread's use", location.number));
      }
    }
  };
  others(location.stores);
  others(location.loads);
  location.alive = false;
  note("destroy", location, 0);
}

void Checker::learn(const Location& location, std::size_t index, std::memory_order order) {
  if (acquires(order)) {
    clock().join(location.stores[index].sync);
  }
}

std::uint64_t Checker::load(Location& location, std::memory_order order) {
  point(location, false);
  const auto self = static_cast<std::size_t>(current_);
  const std::size_t newest = location.stores.size() - 1;
  std::size_t oldest = location.seen[self];
  for (std::size_t i = newest; i > oldest; --i) {
    if (location.stores[i].event.before(clock())) {
      oldest = i;
    }
  }
  for (const Location::Load& load : location.loads) {
    if (load.event.before(clock())) {
      oldest = std::max(oldest, load.store);
    }
  }
  // An old value that was still the newest when this thread did its step before is left out: there
  // is an execution in which the load comes right before the store that replaced it.
  std::size_t old_values = 0;
  if (on_thread() && !location.saw_old[self]) {
    while (oldest + old_values < newest &&
           location.stores[oldest + old_values + 1].step < threads_[current_].last_step) {
      ++old_values;
    }
  }
  const auto choice = static_cast<std::size_t>(choose_value(static_cast<int>(old_values + 1)));
  const std::size_t index = choice == 0 ? newest : oldest + choice - 1;
  location.saw_old[self] = index != newest;
  location.seen[self] = index;
  location.loads.push_back({index, now()});
  learn(location, index, order);
  note(index == newest ? "load" : "load old", location, location.stores[index].value);
  end_step();
  return location.stores[index].value;
}

void Checker::append(Location& location, std::uint64_t value, std::memory_order order,
                     bool continues) {
  // A read-modify-write continues the release sequence of the store that it read.
  Clock sync = continues ? location.stores.back().sync : Clock{};
  if (releases(order)) {
    sync.join(clock());
  }
  location.stores.push_back({value, sync, now(), step_});
  location.seen[static_cast<std::size_t>(current_)] = location.stores.size() - 1;
  location.saw_old[static_cast<std::size_t>(current_)] = false;
  end_step();
  for (int i = 0; i < thread_count_; ++i) {
    if (threads_[i].paused && threads_[i].next_location == &location) {
      threads_[i].blocked = threads_[i].paused = false;
    }
  }
}

void Checker::pause() {
  Thread& self = threads_[current_];
  if (!self.next_location->saw_old[static_cast<std::size_t>(current_)] &&
      self.next_location->seen[static_cast<std::size_t>(current_)] + 1 ==
          self.next_location->stores.size()) {
    self.blocked = self.paused = true;
    go_on_with_someone();
  }
}

void Checker::store(Location& location, std::uint64_t value, std::memory_order order) {
  point(location, true);
  note("store", location, value);
  append(location, value, order, false);
}

std::uint64_t Checker::read_modify_write(Location& location, std::memory_order success,
                                         std::memory_order failure, detail::Change change,
                                         void* argument) {
  point(location, true);
  const std::size_t newest = location.stores.size() - 1;
  const std::uint64_t before = location.stores[newest].value;
  std::uint64_t value = before;
  if (change(value, argument)) {
    note("modify", location, value);
    learn(location, newest, success);
    append(location, value, success, true);
  } else {
    note("compare", location, before);
    location.seen[static_cast<std::size_t>(current_)] = newest;
    location.saw_old[static_cast<std::size_t>(current_)] = false;
    location.loads.push_back({newest, now()});
    learn(location, newest, failure);
    end_step();
  }
  return before;
}

void Checker::futex_wait(Location& location, std::uint64_t seen) {
  point(location, true);
  note("futex wait", location, seen);
  if (location.stores.back().value == seen) {
    threads_[current_].blocked = true;
    location.waiters.push_back(current_);
    go_on_with_someone();
  }
}

void Checker::futex_wake(Location& location) {
  point(location, true);
  note("futex wake", location, location.waiters.size());
  if (!location.waiters.empty()) {
    threads_[location.waiters.front()].blocked = false;
    location.waiters.erase(location.waiters.begin());
  }
}

Shadow* Checker::new_shadow() { return &shadows_.emplace_back(Shadow{now(), {}}); }

void Checker::plain_read(Shadow& shadow) {
  if (!shadow.write.before(clock())) {
    fail("data race: a plain read is not ordered after another thread's write");
  }
  shadow.reads.at[static_cast<std::size_t>(current_)] = time();
}

void Checker::plain_write(Shadow& shadow) {
  bool ordered = shadow.write.before(clock());
  for (std::size_t i = 0; i < shadow.reads.at.size(); ++i) {
    ordered = ordered && shadow.reads.at[i] <= clock().at[i];
  }
  if (!ordered) {
    fail("data race: a plain write is not ordered after another thread's access");
  }
  shadow.write = now();
}

namespace detail {
Location* new_location(std::uint64_t value) { return g_checker->new_location(value); }
void end_location(Location* location) noexcept { g_checker->end_location(*location); }
std::uint64_t load(Location* location, std::memory_order order) noexcept {
  return g_checker->load(*location, order);
}
void store(Location* location, std::uint64_t value, std::memory_order order) noexcept {
  g_checker->store(*location, value, order);
}
std::uint64_t read_modify_write(Location* location, std::memory_order success,
                                std::memory_order failure, Change change, void* argument) noexcept {
  return g_checker->read_modify_write(*location, success, failure, change, argument);
}
void futex_wait(Location* location, std::uint64_t seen) noexcept {
  g_checker->futex_wait(*location, seen);
}
void futex_wake(Location* location) noexcept { g_checker->futex_wake(*location); }
Shadow* new_shadow() { return g_checker->new_shadow(); }
void plain_read(Shadow* shadow) noexcept { g_checker->plain_read(*shadow); }
void plain_write(Shadow* shadow) noexcept { g_checker->plain_write(*shadow); }
}  // namespace detail

}  // namespace tandem::model
