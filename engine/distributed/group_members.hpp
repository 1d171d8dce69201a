// engine/distributed/group_members.hpp — which ranks of the run a group has.
#pragma once

#include <vector>

#include "engine/distributed/communicator.hpp"

namespace tandem {

/// The group's ranks by their numbers in the run, in the group's order. All ranks of the run call
/// it, each for its group.
[[nodiscard]] std::vector<int> members_of(Communicator& communicator, const RankGroup& group);

}  // namespace tandem
