// error: a Task that a posted function returns would never run
#include "runtime/event_loop.hpp"

using namespace tandem;

Task<> work() { co_return; }
void post(EventLoop& loop) { loop.post(&work); }
