// error: no matching function for call to 'when_all'
#include <vector>

#include "runtime/when_all.hpp"

using namespace tandem;

Task<> all(std::vector<int> items, int* sum) {
  (void)co_await when_all(items, [sum](int item) -> Task<> {
    *sum += item;
    co_return;
  });
}
