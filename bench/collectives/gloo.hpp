// bench/collectives/gloo.hpp — times of torch.distributed's Gloo, taken by a script as a child of
// the same run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tandem::bench {

/// By {operation, bytes}: seconds of one operation. Empty, and said so on stderr, where torch is
/// not installed.
[[nodiscard]] std::map<std::pair<std::string, std::size_t>, double> time_gloo(
    std::uint32_t world, const std::vector<std::size_t>& sizes);

}  // namespace tandem::bench
