#include "runtime/scope.hpp"

#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "runtime/detail/await_chain.hpp"
#include "runtime/exit_reason.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

Scope::~Scope() {
  loop_.check_here();
  if (running() != 0 && std::uncaught_exceptions() > exceptions_ && !loop_.is_running()) {
    join_while_unwinding();
  }
  const bool given_up = loop_.is_given_up();  // what is left never goes on
  if (running() != 0 && !given_up) {
    std::fputs(describe().c_str(), stderr);
  }
  report_failures();
  *link_on_loop_ = next_on_loop_;
  if (next_on_loop_ != nullptr) {
    next_on_loop_->link_on_loop_ = link_on_loop_;
  }
  TANDEM_CHECK_FOR(name_, running() == 0 || given_up,
                   std::uncaught_exceptions() > exceptions_
                       ? "a scope died before its tasks, because an exception passed: in a "
                         "coroutine, with_scope() waits for them"
                       : "a scope died before its tasks: co_await scope.join() first");
  while (!owned_.empty()) {
    owned_.pop_back();
  }
  if (given_up) {
    empty_.forget_all();
    stop_.forget_all();
  }
}

// The exception that passes goes on; what the tasks fail with now is said on stderr.
void Scope::join_while_unwinding() noexcept {
  if (loop_.is_given_up()) {
    return;
  }
  request_stop();
  try {
    loop_.run(
        [](Scope* self) -> Task<> {
          while (self->running() > 0) {
            co_await self->empty();
          }
        },
        this);
  } catch (...) {
    detail::report_unseen("loop", loop_.name().c_str(), std::current_exception());
  }
}

void Scope::report_failures() const noexcept {
  for (std::size_t i = seen_; i < failures_.size(); ++i) {
    detail::report_unseen("task", failures_[i].task, failures_[i].error);
  }
}

// The loop does not run, or runs on another thread: then the task travels through its inbox.
void Scope::begin_elsewhere(detail::RootTask::promise_type& task) noexcept {
  if (loop_.is_owned_here()) {
    loop_.post(task.start_op);
    enter(task);
    return;
  }
  arriving_.fetch_add(1, std::memory_order_relaxed);
  task.start_op.run = [](Op& op) noexcept {
    auto& start = static_cast<detail::ResumeOp&>(op);
    auto& arrived = *static_cast<detail::RootTask::promise_type*>(start.promise);
    Scope& self = *arrived.scope;
    self.enter(arrived);
    self.arriving_.fetch_sub(1, std::memory_order_relaxed);
    start.run = &detail::ResumeOp::resume;
    detail::ResumeOp::resume(start);
  };
  loop_.post_from_any_thread(task.start_op);
}

void Scope::close_next_owned() noexcept {
  if (owned_running_ == 0 || running() > owned_running_) {
    return;
  }
  while (may_be_open_ > 0 && owned_[may_be_open_ - 1]->ended()) {
    --may_be_open_;
  }
  if (may_be_open_ > 0) {
    owned_[may_be_open_ - 1]->close();
  }
}

void Scope::enter_loop() noexcept {
  loop_.check_here();
  detail::LoopRegistry& registry = loop_.registry();
  next_on_loop_ = registry.first_scope;
  link_on_loop_ = &registry.first_scope;
  if (next_on_loop_ != nullptr) {
    next_on_loop_->link_on_loop_ = &next_on_loop_;
  }
  registry.first_scope = this;
}

void Scope::trace_begin(detail::RootTask::promise_type& task) noexcept {
  task.trace_id = trace::detail::next_id();
  trace::detail::record({.kind = trace::detail::Kind::kTaskBegin,
                         .name = task.name,
                         .start_ns = trace::detail::now_ns(),
                         .id = task.trace_id});
}

void Scope::note_left(const detail::RootTask::promise_type& task) noexcept {
  if (task.trace_id != 0 && trace::enabled()) {
    trace::detail::record({.kind = trace::detail::Kind::kTaskEnd,
                           .name = task.name,
                           .start_ns = trace::detail::now_ns(),
                           .id = task.trace_id});
  }
  if (task.is_owned_actor) {
    --owned_running_;
  }
  if (running_ == 0 || planted(Bug::kJoinTooEarly)) {
    empty_.set();
  } else if (owned_running_ != 0 && joining_) {
    close_next_owned();
  }
}

void Scope::fail(const char* task, std::exception_ptr error, const char* message) {
  loop_.check_here();
  if (stop_requested() && (detail::is_stopped(error) || detail::is_closing(error))) {
    return;  // as asked
  }
  failures_.push_back({task, std::move(error), message});
  request_stop();
}

namespace {
// Whether the awaiting coroutine is a task of the scope, or runs under one.
struct RunsIn {
  const Scope& scope;
  bool answer = false;

  bool await_ready() const noexcept { return false; }
  template <std::derived_from<TaskPromiseBase> Promise>
  bool await_suspend(std::coroutine_handle<Promise> self) noexcept {
    const TaskPromiseBase* root = &self.promise();
    while (root->parent != nullptr) {
      root = root->parent;
    }
    answer = root->scope == &scope;
    return false;
  }
  bool await_resume() const noexcept { return answer; }
};
}  // namespace

Task<> Scope::join() {
  if (running() > 0 && co_await RunsIn{*this}) {
    throw failure(
        ExitCode::kFailure, "scope",
        "{} is joined by a task of its own, which would wait for itself for ever; join it "
        "from outside, or return",
        name_);
  }
  joining_ = true;
  close_next_owned();
  while (running() > 0) {
    co_await empty();
    if (planted(Bug::kJoinTooEarly)) {
      break;
    }
  }
  if (!failures_.empty()) {
    seen_ = failures_.size();
    std::rethrow_exception(failures_.front().error);
  }
}

std::string Scope::describe() const {
  std::string text = fmt::format("scope \"{}\": {} running{}\n", name_, running_,
                                 stop_requested() ? ", asked to stop" : "");
  for (const auto* task = first_; task != nullptr; task = task->next_in_scope) {
    text += "  " + describe_await_chain(*task, loop_.now()) + "\n";
  }
  return text;
}

void detail::LeaveScope::fail(RootTask::promise_type& task) {
  task.scope->fail(task.name, std::move(error));
}

}  // namespace tandem
