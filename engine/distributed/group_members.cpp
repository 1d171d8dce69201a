#include "engine/distributed/group_members.hpp"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "runtime/util/check.hpp"

namespace tandem {

std::vector<int> members_of(Communicator& communicator, const RankGroup& group) {
  std::vector<int> members(static_cast<std::size_t>(group.world_size), -1);
  const std::vector<std::string> places =
      communicator.of_all_ranks(fmt::format("{}/{}", group.name, group.rank));
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    for (int place = 0; place < group.world_size; ++place) {
      if (places[rank] == fmt::format("{}/{}", group.name, place)) {
        members[static_cast<std::size_t>(place)] = static_cast<int>(rank);
      }
    }
  }
  TANDEM_CHECK(std::ranges::find(members, -1) == members.end(),
               "each place of a group is a rank's");
  return members;
}

}  // namespace tandem
