// error: no member named 'await_ready'
#include "runtime/task.hpp"

using namespace tandem;

Task<int> one() { co_return 1; }
Task<> twice() {
  Task<int> task = one();
  (void)co_await std::move(task);
  (void)co_await task;
}
