// error: call to implicitly-deleted copy constructor of 'Task<>'
#include "runtime/task.hpp"

using namespace tandem;

Task<> work() { co_return; }
Task<> wait() {
  Task<> once = work();
  Task<> twice = once;
  co_await std::move(twice);
}
