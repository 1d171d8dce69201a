#include "runtime/detail/choice.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/deadline.hpp"
#include "runtime/sleep.hpp"

namespace tandem::detail {

// All candidates enter their lists; the coroutine goes on when one was handed a value, or gave up,
// or when a channel was closed.
class ChoiceAwaiter {
 public:
  static constexpr const char* kAwaitName = "a value in one of several channels";

  ChoiceAwaiter(const std::vector<Candidate*>& all, TimePoint deadline) noexcept
      : all_(all), deadline_(deadline) {}
  ChoiceAwaiter(const ChoiceAwaiter&) = delete;
  ChoiceAwaiter& operator=(const ChoiceAwaiter&) = delete;

  bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      ListedWaiter& waiter = all_[i]->waiter();
      waiter.next_in_group_ = &all_[(i + 1) % all_.size()]->waiter();
      if (!all_[i]->closed()) {
        waiter.enter(all_[i]->list(), coroutine);
      }
    }
    if (deadline_ != TimePoint::max()) {
      const auto open = std::ranges::find_if(all_, [](Candidate* one) { return !one->closed(); });
      timer_.emplace((*open)->waiter());
      timer_->start(EventLoop::current(), deadline_);
    }
  }
  /// Whether the deadline has ended it.
  bool await_resume() noexcept {
    if (!timer_) {
      return false;
    }
    timer_->end();
    return timer_->late;
  }

 private:
  const std::vector<Candidate*>& all_;
  TimePoint deadline_;
  std::optional<GiveUpTimer> timer_;
};

Task<std::size_t> choose(std::vector<Candidate*> all, TimePoint deadline, StopToken stop) {
  if (!EventLoop::current().may_continue_synchronously()) {
    co_await yield();  // others first; nothing was taken yet
  }
  for (;;) {
    stop.throw_if_stopped();
    const auto now = std::ranges::find_if(all, [](Candidate* one) { return one->take(); });
    if (now != all.end()) {
      co_return static_cast<std::size_t>(now - all.begin());
    }
    if (std::ranges::all_of(all, [](Candidate* one) { return one->closed(); })) {
      co_return all.size();
    }
    const bool late = co_await ChoiceAwaiter(all, deadline);
    const auto handed = std::ranges::find_if(all, [](Candidate* one) { return one->has_value(); });
    if (handed != all.end()) {
      if (stop.stop_requested()) {
        (*handed)->give_back();
        throw Stopped();
      }
      co_return static_cast<std::size_t>(handed - all.begin());
    }
    if (late) {
      throw DeadlineExceeded("[select] nothing came in time");
    }
  }
}

}  // namespace tandem::detail
