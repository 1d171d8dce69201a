// actors/collectives/planted.hpp — bugs planted in the collectives of groups, which have numbers
// behind those of runtime/util/planted.hpp.
#pragma once

#include <cstdint>

#include "runtime/util/planted.hpp"

namespace tandem {

enum class GroupBug : std::uint8_t {
  kNumberKept =
      static_cast<std::uint8_t>(Bug::kCount),  // a failed rank has its number in the group
  kWaitUnsaid,  // for whom a rank waits in a group is not said to the others
  kCount,
};

[[nodiscard]] inline bool planted(GroupBug bug) noexcept {
  return planted(static_cast<Bug>(static_cast<std::uint8_t>(bug)));
}

}  // namespace tandem
