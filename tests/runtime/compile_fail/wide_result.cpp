// compiles
// Results and yielded values may ask for more than 16 bytes without -fcoro-aligned-allocation, too.
#include "runtime/generator.hpp"
#include "runtime/task.hpp"

namespace {
struct alignas(64) Wide {
  float values[16];
};
tandem::Task<Wide> wide() { co_return Wide{}; }
tandem::Generator<Wide> wides() { co_yield Wide{}; }
tandem::Task<> use() {
  (void)co_await wide();
  auto all = wides();
  (void)co_await all.next();
}
}  // namespace

auto* const used = &use;
