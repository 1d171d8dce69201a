#include "models/kernels/parallel.hpp"

#include <algorithm>
#include <atomic>

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace tandem {
namespace {

/// The entry points of libgomp's ABI that gcc's `#pragma omp parallel` compiles to.
struct Gomp {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);

  static const Gomp& get() {
    static const Gomp gomp = {
        reinterpret_cast<decltype(Gomp::parallel)>(dlsym(RTLD_DEFAULT, "GOMP_parallel"))};
    return gomp;
  }
};

thread_local bool in_region = false;

struct Region {
  std::atomic<std::int64_t> next{0};
  std::int64_t count;
  void (*call)(void*, std::int64_t);
  void* context;

  void work() noexcept {
    for (std::int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      call(context, i);
    }
  }
};

void enter(void* region) {
  in_region = true;
  static_cast<Region*>(region)->work();
  in_region = false;
}

}  // namespace

int parallel_team_size() {
  return in_region || Gomp::get().parallel == nullptr ? 1 : at::get_num_threads();
}

void detail::run_tasks(std::int64_t count, void (*call)(void*, std::int64_t), void* context) {
  const std::int64_t team = std::min<std::int64_t>(parallel_team_size(), count);
  if (team <= 1) {
    for (std::int64_t i = 0; i < count; ++i) {
      call(context, i);
    }
    return;
  }
  Region region{.count = count, .call = call, .context = context};
  Gomp::get().parallel(enter, &region, static_cast<unsigned>(team), 0);
}

}  // namespace tandem
