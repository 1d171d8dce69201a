// error: no matching function for call to 'with_deadline'
#include "runtime/with_deadline.hpp"

using namespace tandem;

Task<> in_time() {
  co_await with_deadline(std::chrono::seconds(1), [] { return 1; });
}
