// engine/distributed/group_members.hpp — exchanges which ranks of the run belong to a group.
#pragma once

#include <vector>

#include "engine/distributed/communicator.hpp"

namespace tandem {

/// Returns the numbers in the run of the group's ranks, in the group's order. Collective: all ranks
/// of the run call it, each for its group.
[[nodiscard]] std::vector<int> members_of(Communicator& communicator, const RankGroup& group);

}  // namespace tandem
