#include "runtime/supervision/watchdog.hpp"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include <fmt/format.h>

#include "runtime/detail/await_chain.hpp"
#include "runtime/detail/mailbox/mailbox.hpp"
#include "runtime/scope.hpp"

namespace tandem {
namespace {
constexpr Duration kOftenest = std::chrono::milliseconds(1);  // a limit of 0 looks no more often
}

Watchdog::Timer::Timer(Watchdog& owner) noexcept
    : TimerOp([](Op& op) noexcept {
        Watchdog& self = static_cast<Timer&>(op).watchdog;
        self.tick();
        self.loop_.arm(self.timer_, time_after(self.loop_.now(), self.options_.every));
      }),
      watchdog(owner) {}

Watchdog::Watchdog(EventLoop& loop, Options options)
    : loop_(loop), options_(std::move(options)), timer_(*this) {
  if (options_.every <= Duration::zero()) {
    options_.every = std::max<Duration>(options_.limit / 4, kOftenest);
  }
  if (options_.report == nullptr) {
    options_.report = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  }
  looked_ = awake_since_ = loop_.now();
  loop_.arm(timer_, time_after(looked_, options_.every));
}

void Watchdog::tick() {
  const TimePoint now = loop_.now();
  if ((now - looked_) / 2 > options_.every) {
    awake_since_ = now;  // the loop did not run, so it may not have seen yet that a wait is over
  }
  looked_ = now;
  if (auto* main = loop_.registry().main) {
    check_task(*main);
  }
  for (Scope* scope = loop_.registry().first_scope; scope != nullptr;
       scope = scope->next_on_loop()) {
    for (auto* root = scope->first_task(); root != nullptr; root = root->next_in_scope) {
      check_task(*root);
    }
  }
}

void Watchdog::check_task(detail::RootTask::promise_type& root) {
  const TaskPromiseBase& leaf = await_leaf(root);
  const std::int64_t now_ns = loop_.now().time_since_epoch().count();
  // By their text: equal literals of two sources need not be one.
  const std::string_view wait = leaf.waiting_for != nullptr ? leaf.waiting_for : "";
  const bool idle = wait == detail::Mailbox::EnvelopeAwaiter::kAwaitName ||
                    wait == Scope::EmptyAwaiter::kAwaitName;
  const std::int64_t counted_from_ns =
      std::max(leaf.since_ns, awake_since_.time_since_epoch().count());
  if (idle || now_ns - counted_from_ns <= options_.limit.count() ||
      root.reported_ns == leaf.since_ns) {
    return;
  }
  root.reported_ns = leaf.since_ns;
  ++reports_;
  options_.report(fmt::format("[watchdog] a task waits for {:.1f} s: {}",
                              static_cast<double>(now_ns - counted_from_ns) * 1e-9,
                              describe_await_chain(root, loop_.now())));
}

}  // namespace tandem
