// runtime/std_stop.hpp — stops from and for code that knows std::stop_token.
//
// Thread rule: StopFromStd is told from any thread, and its scope or source lives on the handle's
// loop. StdStop is of the loop's thread; its token() may be looked at by any.
// Both tell at once what was requested before.
//
//   const StopFromStd from(thread_token, scope.stop_handle());   // while it lives
//   const StdStop to(co_await current_stop_token());
//   co_await pool->run([token = to.token()] { return search(token); });
#pragma once

#include <stop_token>
#include <utility>

#include "runtime/stop_token.hpp"

namespace tandem {

/// While it lives, a stop of `from` stops what `to` is of.
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

/// A std::stop_token that is stopped with `from`, while this lives. It may outlive that.
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
