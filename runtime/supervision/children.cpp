#include "runtime/supervision/children.hpp"

#include <algorithm>
#include <string_view>

#include "runtime/sleep.hpp"

namespace tandem {

void detail::stop_children(Children& children) noexcept { children.request_stop(); }

const TaskFailure* detail::escalated(const Children& children) noexcept {
  return children.escalated_ ? &*children.escalated_ : nullptr;
}

Children::Child::~Child() {
  if (mailbox != nullptr) {
    mailbox->abandon();
  }
}

void Children::Child::open_scope(EventLoop& loop, StopToken stop) {
  scope.reset();
  scope.emplace(loop, Name(std::string_view(name)), stop);
}

ExitReason Children::Child::exit_reason() const {
  if (not_made != nullptr) {
    return {ExitReason::Kind::kFailed, name, name, nullptr, not_made};
  }
  if (!scope->failures().empty()) {
    const TaskFailure& first = scope->failures().front();
    return {ExitReason::Kind::kFailed, name, first.task, first.message, first.error};
  }
  return {.kind = mailbox->stopped() ? ExitReason::Kind::kStopped : ExitReason::Kind::kNormal,
          .actor = name};
}

Children::Children(Scope& scope, Options options) : options_(options), scope_(&scope) {}

Children::~Children() {
  if (running_ != 0 && std::uncaught_exceptions() > exceptions_ && !scope_->loop().is_running()) {
    end_while_unwinding();
  }
  if (running_ != 0 && scope_->loop().is_given_up()) {  // none of them goes on
    for (const auto& child : children_) {
      child->mailbox->end();
      child->remade.forget_all();
    }
    none_restarts_.forget_all();
    stop_->forget_all();
    return;
  }
  TANDEM_CHECK_EQ(running_, 0U,
                  "children died before they had ended: join the parent's scope first");
}

// The parent's members are being destroyed, so it handles no more messages. The exception in flight
// continues.
void Children::end_while_unwinding() noexcept {
  if (parent_ != nullptr) {
    give_up_parent_(parent_);
  }
  EventLoop& loop = scope_->loop();
  if (loop.is_given_up()) {
    return;
  }
  Event none;
  none_runs_ = &none;
  request_stop();
  try {
    loop.run([](Event* event) -> Task<> { co_await *event; }, &none);
  } catch (...) {
    detail::report_unseen("loop", loop.name().c_str(), std::current_exception());
  }
  none_runs_ = nullptr;
}

Scope& Children::owner() {
  if (scope_ == nullptr) {
    scope_ = scope_of_parent_(parent_);
    TANDEM_CHECK(scope_ != nullptr, "a parent starts children once it is started: in on_start()");
  }
  if (!stop_) {
    stop_.emplace(scope_->stop_token());
  }
  return *scope_;
}

void Children::request_stop() noexcept {
  if (stop_) {
    stop_->request_stop();
  }
}

// One for each child, a task of the parent's scope: from its start to its final end.
Task<> Children::look_after(Child* child) {
  for (;;) {
    const std::uint64_t times_made = child->times_made;
    co_await child->scope->empty();
    ExitReason reason;
    OnExit what = OnExit::kRestart;
    if (!child->with_another && child->times_made == times_made) {
      reason = child->exit_reason();
      what = decide(*child, reason);
      if (what == OnExit::kRestart) {
        co_await pause(child);
        // One that was started since a restart of all began is not a part of it.
        while (!none_restarts_.is_set() && !child->with_another) {
          co_await none_restarts_;
        }
      }
    }
    while (child->with_another) {  // maybe since it pauses, maybe once more
      co_await child->remade;
    }
    if (child->times_made != times_made) {
      continue;
    }
    if (what == OnExit::kRestart && !stop_->stop_requested()) {
      co_await restart(child);
      continue;
    }
    end(*child, reason);
    if (what != OnExit::kStop) {  // while all stop, nothing is restarted, and no error is lost
      escalate(reason);
    }
    break;
  }
  children_.erase(child->place);  // with its arguments: a parent may start any number
  if (--running_ == 0) {
    stop_.reset();
    if (none_runs_ != nullptr) {
      none_runs_->set();
    }
  }
}

OnExit Children::decide(Child& child, ExitReason& reason) {
  if (reason.failed() && (!reason.restartable() || stop_->stop_requested())) {
    return OnExit::kEscalate;  // while all stop, nothing is restarted, and no error is lost
  }
  OnExit what = reason.failed() ? OnExit::kRestart : OnExit::kStop;
  if (ask_ != nullptr && !stop_->stop_requested()) {
    try {
      what = ask_(parent_, reason);
    } catch (...) {
      reason.error = std::current_exception();
      return OnExit::kEscalate;
    }
  }
  if (what == OnExit::kRestart) {
    if (!reason.failed()) {
      return OnExit::kStop;
    }
    return may_restart(child, reason) ? OnExit::kRestart : OnExit::kEscalate;
  }
  return what;
}

bool Children::may_restart(Child& child, ExitReason& reason) {
  const RestartLimit& limit = child.options ? child.options->limit : options_.limit;
  std::vector<TimePoint>& recent = child.options ? child.recent : recent_;
  const TimePoint now = scope_->loop().now();
  std::erase_if(recent, [&](TimePoint then) { return now - then > limit.within; });
  if (recent.size() < static_cast<std::size_t>(std::max(limit.most, 0))) {
    if (recent.empty()) {
      child.pause = Duration(0);  // it has run long enough
    }
    recent.push_back(now);
    return true;
  }
  reason.error = std::make_exception_ptr(failure(
      ExitCode::kFailure, "actor", "{}; {} restarts within {:.3g} s are allowed; mend the cause",
      reason.text(), limit.most, std::chrono::duration<double>(limit.within).count()));
  return false;
}

Task<> Children::pause(Child* child) {
  if (!child->options || child->options->backoff <= Duration(0)) {
    co_return;
  }
  const Duration most = child->options->backoff_most;
  const Duration next = child->pause == Duration(0) ? child->options->backoff
                        : child->pause > most / 2   ? most
                                                    : 2 * child->pause;
  child->pause = std::min(next, most);
  try {
    co_await sleep_for(child->pause, stop_->token());
  } catch (const Stopped&) {
    // all are stopped, and this one is not restarted
  }
}

Task<> Children::restart(Child* failed) {
  ++restarts_;
  if (options_.strategy == Strategy::kAllForOne) {
    none_restarts_.reset();
  }
  std::vector<Child*> all;
  for (const auto& each : children_) {
    Child* child = each.get();
    if (child == failed) {
      all.push_back(child);
    } else if (options_.strategy == Strategy::kAllForOne && !child->ended) {
      child->with_another = true;
      child->remade.reset();
      child->scope->request_stop();
      all.push_back(child);
    }
  }
  for (Child* child : all) {
    co_await child->scope->empty();
  }
  for (std::size_t i = all.size(); i > 0; --i) {
    all[i - 1]->destroy_state();
  }
  for (Child* child : all) {
    remake(*child);
    ++child->times_made;
    child->with_another = false;
    child->remade.set();
  }
  none_restarts_.set();
}

void Children::remake(Child& child) {
  child.open_scope(scope_->loop(), stop_->token());
  child.not_made = nullptr;
  try {
    child.make();
  } catch (...) {
    child.not_made = std::current_exception();  // the next exit
    return;
  }
  child.start();
}

void Children::end(Child& child, const ExitReason& reason) noexcept {
  child.ended = true;
  child.mailbox->end();
  child.destroy_state();
  child.scope.reset();
  child.mailbox->watchers().tell(reason);
}

void Children::escalate(const ExitReason& reason) {
  std::exception_ptr error = reason.error;
  if (error == nullptr) {
    error = std::make_exception_ptr(failure(ExitCode::kFailure, "actor", "{}", reason.text()));
  }
  const char* origin = reason.origin != nullptr ? reason.origin : reason.actor;
  escalated_ = TaskFailure{origin, error, reason.message};
  request_stop();
  scope_->fail(origin, error, reason.message);
}

}  // namespace tandem
