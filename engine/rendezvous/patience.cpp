#include "engine/rendezvous/patience.hpp"

#include "engine/rendezvous/blocked_signals.hpp"
#include "runtime/thread.hpp"

namespace tandem {
namespace {
constexpr std::chrono::milliseconds kTick{100};  // on a busy host a thread wakes late
constexpr std::chrono::seconds kSilence{5};
}  // namespace

Patience::Patience(std::chrono::milliseconds timeout)
    : timeout_(timeout), began_(Clock::real().now()), awake_(kTick, began_) {
  const BlockedSignals blocked;
  ticker_ = thread::start("rendezvous", 0, 1, [this] { keep_ticking(); });
}

Patience::~Patience() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ends_changed_.notify_one();
  ticker_.join();
}

bool Patience::pause(std::chrono::milliseconds length) {
  if (awake_for() >= timeout_) {
    return false;
  }
  std::this_thread::sleep_for(length);
  return true;
}

bool Patience::grows_long() {
  if (said_ || awake_for() < kSilence) {
    return false;
  }
  return said_ = true;
}

Duration Patience::awake_for() {
  const std::lock_guard lock(mutex_);
  const TimePoint now = Clock::real().now();
  slept_ += awake_.slept_since(now);
  return now - began_ - slept_;
}

void Patience::keep_ticking() {
  std::unique_lock lock(mutex_);
  while (!ends_changed_.wait_for(lock, kTick, [this] { return ends_; })) {
    slept_ += awake_.slept_since(Clock::real().now());
  }
}

}  // namespace tandem
