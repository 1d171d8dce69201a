// error: no matching function for call to 'with_deadline'
#include "runtime/with_deadline.hpp"

using namespace tandem;

Task<> in_time(int* sum) {
  co_await with_deadline(std::chrono::seconds(1), [sum]() -> Task<> {
    *sum = 1;
    co_return;
  });
}
