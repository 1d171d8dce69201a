#include "bench/runtime/peers.hpp"

namespace tandem::bench {
bool register_caf() { return false; }
}  // namespace tandem::bench
