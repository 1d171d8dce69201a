#include "runtime/scope.hpp"

#include <cstdio>

#include <fmt/format.h>

#include "runtime/detail/await_chain.hpp"
#include "runtime/exit_reason.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

Scope::~Scope() {
  if (running_ != 0) {
    std::fputs(describe().c_str(), stderr);
  }
  *link_on_loop_ = next_on_loop_;
  if (next_on_loop_ != nullptr) {
    next_on_loop_->link_on_loop_ = link_on_loop_;
  }
  TANDEM_CHECK_EQ(running_, 0U, "a scope died before its tasks: co_await scope.join() first");
}

void Scope::enter_loop() noexcept {
  detail::LoopRegistry& registry = loop_.registry();
  next_on_loop_ = registry.first_scope;
  link_on_loop_ = &registry.first_scope;
  if (next_on_loop_ != nullptr) {
    next_on_loop_->link_on_loop_ = &next_on_loop_;
  }
  registry.first_scope = this;
}

void Scope::enter(detail::RootTask::promise_type& task) noexcept {
  task.scope = this;
  task.next_in_scope = first_;
  task.previous_in_scope = nullptr;
  if (first_ != nullptr) {
    first_->previous_in_scope = &task;
  }
  first_ = &task;
  ++running_;
  empty_.reset();
  if (trace::enabled()) [[unlikely]] {
    task.trace_id = trace::detail::next_id();
    trace::detail::record({.kind = trace::detail::Kind::kTaskBegin,
                           .name = task.name,
                           .start_ns = trace::detail::now_ns(),
                           .id = task.trace_id});
  }
}

void Scope::leave(detail::RootTask::promise_type& task) noexcept {
  (task.previous_in_scope != nullptr ? task.previous_in_scope->next_in_scope : first_) =
      task.next_in_scope;
  if (task.next_in_scope != nullptr) {
    task.next_in_scope->previous_in_scope = task.previous_in_scope;
  }
  if (task.trace_id != 0 && trace::enabled()) [[unlikely]] {
    trace::detail::record({.kind = trace::detail::Kind::kTaskEnd,
                           .name = task.name,
                           .start_ns = trace::detail::now_ns(),
                           .id = task.trace_id});
  }
  if (--running_ == 0 || planted(Bug::kJoinTooEarly)) {
    empty_.set();
  }
}

void Scope::fail(const char* task, std::exception_ptr error, const char* message) {
  if (stop_requested() && detail::is_stopped(error)) {
    return;  // as asked
  }
  failures_.push_back({task, std::move(error), message});
  request_stop();
}

Task<> Scope::join() {
  while (running_ > 0) {
    co_await empty();
    if (planted(Bug::kJoinTooEarly)) {
      break;
    }
  }
  if (!failures_.empty()) {
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

bool detail::LeaveScope::await_suspend(std::coroutine_handle<RootTask::promise_type> self) {
  RootTask::promise_type& task = self.promise();
  if (error != nullptr) {
    task.scope->fail(task.name, std::move(error));
  }
  task.scope->leave(task);
  return false;
}

}  // namespace tandem
