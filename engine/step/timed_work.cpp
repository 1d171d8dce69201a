#include "engine/step/timed_work.hpp"

#include <algorithm>

#include "runtime/event_loop.hpp"
#include "runtime/sleep.hpp"

namespace tandem {

Task<> TimedUpdates::run(UpdateSlice slice) {
  double bytes = 0;
  visit_arrays(*slice.unit, slice.pass, [&](const auto& array, const ArrayUse& use) {
    if (array != nullptr) {
      bytes += (use.read + use.written) * use.bytes_of(slice.end - slice.begin);
    }
  });
  free_at_ = std::max(free_at_, EventLoop::current().now()) +
             Duration(static_cast<std::int64_t>(bytes / bytes_per_s_ * 1e9));
  co_await sleep_until(free_at_);
}

}  // namespace tandem
