// --sim_spec: what is accepted reads back as itself.
#include "engine/types/sim_spec.hpp"

#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  const std::string text = to_string(parse_sim_spec(input));
  expect(to_string(parse_sim_spec(text)) == text, "a device reads back as itself");
}

}  // namespace tandem::fuzz
