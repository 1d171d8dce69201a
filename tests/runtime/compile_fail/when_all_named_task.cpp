// error: no matching function for call to 'when_all'
#include "runtime/when_all.hpp"

using namespace tandem;

Task<int> one() { co_return 1; }
Task<> both() {
  Task<int> task = one();
  (void)co_await when_all(task, task);
}
