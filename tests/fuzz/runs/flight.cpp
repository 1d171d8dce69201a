// A rank's flight recorder, which its launcher reads after the rank's end.
#include "runtime/flight.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  static_assert(std::is_trivially_destructible_v<flight::Ring>);
  std::vector<std::vector<flight::Entry>> ranks;
  const std::size_t half = input.size() / 2;
  for (const std::string_view part : {input.substr(0, half), input.substr(half)}) {
    const auto ring = std::make_unique<flight::Ring>();
    // Behind the magic and the numbers, which the reader has compared: next, then slots.
    auto* const next = reinterpret_cast<char*>(&ring->next);
    const std::size_t room =
        sizeof(flight::Ring) - static_cast<std::size_t>(next - reinterpret_cast<char*>(ring.get()));
    std::memcpy(next, part.data(), std::min(room, part.size()));
    ranks.push_back(ring->entries());
    expect(ranks.back().size() <= flight::Ring::kSlots, "a ring has as many entries as slots");
    (void)flight::describe(ranks.back(), 1'000'000);
    (void)flight::last_of(ranks.back(), 1'000'000);
    (void)flight::blamed_by(ranks.back());
  }
  const auto explained = flight::explain(ranks, 1'000'000);
  expect(!explained || std::ranges::all_of(explained->absent, [](auto rank) { return rank < 2; }),
         "who is absent is one of the ranks");
}

}  // namespace tandem::fuzz
