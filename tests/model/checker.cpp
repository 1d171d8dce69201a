#include "tests/model/checker.hpp"

#include <fmt/format.h>

#include "tests/model/checker_state.hpp"

namespace tandem::model {

Checker* g_checker = nullptr;

Result Checker::explore(const std::function<void(Execution&)>& setup, std::uint64_t most) {
  g_checker = this;
  do {
    run_once(setup);
    (redundant_ ? result_.redundant : result_.executions) += 1;
    if (!result_.failed && !next_branch()) {
      result_.complete = true;
    }
  } while (!result_.failed && !result_.complete && result_.executions < most);
  g_checker = nullptr;
  return result_;
}

void Checker::run_once(const std::function<void(Execution&)>& setup) {
  thread_count_ = 0;
  depth_ = 0;
  step_ = 0;
  asleep_ = 0;
  redundant_ = false;
  setup_clock_ = {};
  setup_clock_.at[kSetup] = 1;
  steps_.clear();
  Execution execution;
  setup(execution);
  starting_ = true;  // each runs up to its first operation
  for (current_ = 0; current_ < thread_count_; ++current_) {
    main_->switch_to(threads_[current_].fiber);
  }
  starting_ = false;
  current_ = kSetup;
  go_on_with_someone();
  current_ = kSetup;
  if (!redundant_ && !result_.failed) {
    for (int i = 0; i < thread_count_; ++i) {
      setup_clock_.join(threads_[i].clock);
    }
    if (at_end_) {
      at_end_();
    }
  }
  for (Thread& thread : threads_) {
    thread.body = nullptr;
  }
  at_end_ = nullptr;
  locations_.clear();
  shadows_.clear();
}

void Checker::add_thread(std::function<void()> body) {
  Thread& thread = threads_.at(static_cast<std::size_t>(thread_count_++));
  thread.body = std::move(body);
  thread.clock = setup_clock_;
  thread.clock.at[static_cast<std::size_t>(thread_count_ - 1)] = 1;
  thread.last_step = 0;
  thread.blocked = thread.paused = false;
  thread.finished = false;
  thread.fiber.restart(&Checker::thread_main);
}

void Checker::thread_main() {
  Checker& self = *g_checker;
  self.threads_[self.current_].body();
  self.threads_[self.current_].finished = true;
  if (self.starting_) {
    self.leave_execution();
  }
  self.go_on_with_someone();
}

// The next path of the tree: the deepest choice that has an option left takes it.
bool Checker::next_branch() {
  while (!choices_.empty()) {
    Choice& last = choices_.back();
    if (last.of_thread) {
      last.explored |= 1U << last.chosen;
      const unsigned left = last.options & ~last.asleep & ~last.explored;
      if (left != 0) {
        last.chosen = __builtin_ctz(left);
        return true;
      }
    } else if (static_cast<unsigned>(++last.chosen) < last.options) {
      return true;
    }
    choices_.pop_back();
  }
  return false;
}

void Checker::leave_execution() { threads_[current_].fiber.switch_to(*main_); }

void Checker::fail(const std::string& what) {
  if (result_.failed) {
    return;
  }
  result_.failed = true;
  result_.failure = what + "\n" + print_steps();
  if (on_thread()) {
    leave_execution();
  }
}

void Checker::go_on_with_someone() {
  const int before = current_;
  const int next = choose_thread();
  if (next == before) {
    return;
  }
  Fiber& from = before == kSetup ? *main_ : threads_[before].fiber;
  current_ = next;
  from.switch_to(next == kSetup ? *main_ : threads_[next].fiber);
}

// kSetup: no thread can go on, or none needs to.
int Checker::choose_thread() {
  unsigned enabled = 0;
  bool all_finished = true;
  for (int i = 0; i < thread_count_; ++i) {
    all_finished = all_finished && threads_[i].finished;
    enabled |= !threads_[i].finished && !threads_[i].blocked ? 1U << i : 0U;
  }
  if (enabled == 0) {
    if (!all_finished) {
      result_.failed = true;
      result_.failure = "deadlock: every thread that is left sleeps\n" + print_steps();
    }
    return kSetup;
  }
  if (depth_ == choices_.size()) {
    const unsigned options = enabled & ~asleep_;
    if (options == 0) {
      redundant_ = true;
      return kSetup;
    }
    const bool stay = current_ < thread_count_ && (options >> current_ & 1U) != 0;
    choices_.push_back({true, enabled, asleep_, 0, stay ? current_ : __builtin_ctz(options)});
  }
  const Choice& choice = choices_[depth_++];
  const Thread& chosen = threads_[choice.chosen];
  const unsigned asleep = (choice.asleep | choice.explored) & ~(1U << choice.chosen);
  asleep_ = 0;
  for (int i = 0; i < thread_count_; ++i) {
    const Thread& other = threads_[i];
    const bool commutes =
        other.next_location != chosen.next_location || (!other.next_writes && !chosen.next_writes);
    asleep_ |= commutes ? asleep & 1U << i : 0U;
  }
  return choice.chosen;
}

int Checker::choose_value(int count) {
  if (count == 1) {
    return 0;
  }
  if (depth_ == choices_.size()) {
    choices_.push_back({false, static_cast<unsigned>(count), 0, 0, 0});
  }
  return choices_[depth_++].chosen;
}

void Checker::point(Location& location, bool writes) {
  if (on_thread()) {
    Thread& self = threads_[current_];
    self.next_location = &location;
    self.next_writes = writes;
    if (starting_) {
      leave_execution();
    } else {
      go_on_with_someone();
    }
  }
  if (!location.alive) {
    fail(fmt::format("atomic {} is used after its destruction", location.number));
  }
  ++time();
  ++step_;
}

void Checker::end_step() {
  ++time();  // this step's release does not cover later steps
  if (on_thread()) {
    threads_[current_].last_step = step_;
  }
}

std::string Checker::print_steps() const {
  std::string text;
  for (const Step& step : steps_) {
    text += fmt::format("  thread {}: {} {} -> {:x}\n", step.thread, step.what, step.location,
                        step.value);
  }
  return text;
}

void Execution::thread(std::function<void()> body) { g_checker->add_thread(std::move(body)); }
void Execution::at_end(std::function<void()> body) { g_checker->add_end(std::move(body)); }

Result explore(const std::function<void(Execution&)>& setup, std::uint64_t most_executions) {
  return std::make_unique<Checker>()->explore(setup, most_executions);
}

void check(bool condition, const char* what) {
  if (!condition) {
    g_checker->fail(what);
  }
}

void pause() { g_checker->pause(); }

}  // namespace tandem::model
