// A launcher's variables: lines NAME=VALUE.
#include <algorithm>

#include "engine/distributed/environment.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  Variables variables;
  while (!input.empty()) {
    const std::string_view line = input.substr(0, input.find('\n'));
    const std::size_t equals = std::min(line.find('='), line.size());
    variables[std::string(line.substr(0, equals))] = line.substr(std::min(equals + 1, line.size()));
    input.remove_prefix(std::min(line.size() + 1, input.size()));
  }
  const Environment found = parse_environment(variables);
  expect(found.rank >= 0 && found.rank < found.world && found.local_rank >= 0 &&
             found.local_rank < found.local_world && found.local_world <= found.world,
         "a rank is one of its world");
  expect(found.master_port > 0 && found.master_port <= 65'535, "a port is a port");
}

}  // namespace tandem::fuzz
