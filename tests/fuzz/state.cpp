// state.json of a checkpoint: what is accepted reads back as itself.
#include "engine/checkpoint/run_state.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  const RunState state = RunState::parse(std::string(input), "state.json");
  expect(RunState::parse(state.json(), "again").json() == state.json(),
         "a state that is accepted reads back as itself");
}

}  // namespace tandem::fuzz
