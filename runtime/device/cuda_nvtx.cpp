#include <nvtx3/nvToolsExt.h>

#include "runtime/trace.hpp"

namespace tandem::trace::detail {
void push_range(const char* name) noexcept { nvtxRangePushA(name); }
void pop_range() noexcept { nvtxRangePop(); }
}  // namespace tandem::trace::detail
