#include "engine/types/recomputation.hpp"

namespace tandem {

namespace {
thread_local bool recomputation = false;
}  // namespace

bool is_recomputation() noexcept { return recomputation; }

RecomputationGuard::RecomputationGuard(bool wanted) noexcept : before_(recomputation) {
  recomputation = wanted;
}

RecomputationGuard::~RecomputationGuard() { recomputation = before_; }

}  // namespace tandem
