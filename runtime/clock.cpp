#include "runtime/clock.hpp"

namespace tandem {
namespace {

class RealClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const noexcept override { return std::chrono::steady_clock::now(); }
  bool skip_to(TimePoint) noexcept override { return false; }
  [[nodiscard]] bool runs_by_itself() const noexcept override { return true; }
};

}  // namespace

Clock& Clock::real() noexcept {
  static RealClock clock;
  return clock;
}

bool ManualClock::skip_to(TimePoint next) noexcept {
  if (idle_ == Idle::kWait) {
    return false;
  }
  const std::int64_t target = next.time_since_epoch().count();
  if (now_ns_.load(std::memory_order_relaxed) < target) {
    now_ns_.store(target, std::memory_order_relaxed);
  }
  return true;
}

}  // namespace tandem
