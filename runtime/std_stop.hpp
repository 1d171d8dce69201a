// runtime/std_stop.hpp — passes stops between the runtime's tokens and std::stop_token.
//
// Thread rule: any thread may request the stop that StopFromStd passes on; its scope or source
// lives on the handle's loop. StdStop belongs to the loop's thread; any thread may look at its
// token().
// Both also pass on, at once, a stop that was requested before.
//
//   const StopFromStd from(thread_token, scope.stop_handle());   // while it lives
//   const StdStop to(co_await current_stop_token());
//   co_await pool->run([token = to.token()] { return search(token); });
#pragma once

#include <stop_token>
#include <utility>

#include "runtime/stop_token.hpp"

namespace tandem {

/// While it lives, a stop of `from` requests the stop of `to`.
class StopFromStd {
 public:
  StopFromStd(std::stop_token from, StopHandle to)
      : callback_(std::move(from), Request{std::move(to)}) {}

 private:
  struct Request {
    StopHandle to;
    void operator()() const noexcept { to.request_stop(); }
  };
  std::stop_callback<Request> callback_;
};

/// Makes a std::stop_token that is stopped with `from` while this object lives. The object may
/// outlive the source of `from`.
class StdStop : LooseStopCallback {
 public:
  explicit StdStop(const StopToken& from)
      : LooseStopCallback(
            [](StopCallback& self) noexcept { static_cast<StdStop&>(self).source_.request_stop(); },
            [](StopCallback&) noexcept {}) {
    from.link(*this);
  }
  [[nodiscard]] std::stop_token token() const noexcept { return source_.get_token(); }

 private:
  std::stop_source source_;
};

}  // namespace tandem
