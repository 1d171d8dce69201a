#include "runtime/stop_token.hpp"

#include "runtime/detail/loop_link.hpp"
#include "runtime/event_loop.hpp"

namespace tandem {

// Kept alive by its handles and, while it is on its way through the loop's inbox, by itself.
struct StopHandle::Shared : Op {
  Shared(EventLoop& loop, StopSource& source_in) noexcept
      : Op(&Shared::arrive), link(loop.link()), source(&source_in) {
    link.add_reference();
  }
  ~Shared() { link.release(); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  static void arrive(Op& op) noexcept {
    auto& shared = static_cast<Shared&>(op);
    const std::shared_ptr<Shared> last_use = std::move(shared.in_flight);
    if (shared.source != nullptr) {
      shared.source->request_stop();
    }
  }

  detail::LoopLink& link;
  StopSource* source;  // of the loop's thread; null when the source is gone
  std::atomic<bool> posted{false};
  std::shared_ptr<Shared> in_flight;
};

void StopHandle::request_stop() const noexcept {
  // acq_rel: the caller that sets it owns in_flight until the op has run.
  if (!shared_->posted.exchange(true, std::memory_order_acq_rel)) {
    shared_->in_flight = shared_;
    if (!shared_->link.post(*shared_)) {
      shared_->in_flight.reset();
    }
  }
}

void LooseStopCallback::tell(StopCallback& callback) noexcept {
  static_cast<LooseStopCallback&>(callback).then(callback);
}

StopSource::FromParent::FromParent(StopSource& child_in) noexcept
    : LooseStopCallback(
          [](StopCallback& self) noexcept { static_cast<FromParent&>(self).child.request_stop(); },
          [](StopCallback& self) noexcept {
            static_cast<FromParent&>(self).child.state_->parent = nullptr;
          }),
      child(child_in) {}

StopSource::StopSource(StopToken parent) : state_(new detail::StopState), from_parent_(*this) {
  state_->requested = parent.stop_requested();
  parent.link(from_parent_);
  if (from_parent_.link_to_this != nullptr) {
    state_->parent = parent.state_;  // which lives at least as long as that link
  }
}

StopSource::~StopSource() {
  for (StopCallback* at = state_->first; at != nullptr;) {
    StopCallback& callback = *std::exchange(at, at->next);
    if (callback.on_stop == &LooseStopCallback::tell) {
      callback.unlink();
      static_cast<LooseStopCallback&>(callback).on_end(callback);
    }
  }
  TANDEM_CHECK(state_->first == nullptr, "a stop source died while a coroutine waits on its token");
  state_->orphaned = true;
  state_->parent = nullptr;
  state_->release();
  if (shared_ != nullptr) {
    shared_->source = nullptr;
  }
}

void StopSource::request_stop() noexcept {
  if (state_->requested) {
    return;
  }
  state_->requested = true;
  state_->parent = nullptr;
  while (StopCallback* callback = state_->first) {
    callback->unlink();
    callback->on_stop(*callback);
  }
}

void StopSource::forget_all() noexcept {
  while (StopCallback* callback = state_->first) {
    callback->unlink();
  }
}

StopHandle StopSource::handle(EventLoop& loop) {
  if (shared_ == nullptr) {
    shared_ = std::make_shared<StopHandle::Shared>(loop, *this);
  }
  return StopHandle(shared_);
}

}  // namespace tandem
