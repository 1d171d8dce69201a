// actors/collectives/hosts/progress.hpp — counts the pieces that have left a stage of a pipeline,
// for the stages that wait for them.
// Thread rule: the loop's thread.
// Cancel rule: a stopped wait ends at once with Stopped.
#pragma once

#include <cstddef>

#include "runtime/event.hpp"
#include "runtime/scope.hpp"
#include "runtime/task.hpp"

namespace tandem {

class Progress {
 public:
  void advance() noexcept {
    ++count_;
    moved_.set();
    moved_.reset();  // for later waits
  }
  /// Waits until at least `count` pieces have left the stage.
  Task<> reach(std::size_t count) {
    const StopToken stop = co_await current_stop_token();
    while (count_ < count) {
      co_await moved_.wait(stop);
    }
  }

 private:
  std::size_t count_ = 0;
  Event moved_;
};

}  // namespace tandem
