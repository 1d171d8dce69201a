// A status socket's answer, as `tandem top` shows it.
#include <algorithm>

#include "tests/fuzz/fuzz.hpp"
#include "tools/cli/status_client.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  const auto text = waits_text(std::string(input));
  expect(!text || std::ranges::none_of(*text, [](char c) { return c != '\n' && (c & 0xe0) == 0; }),
         "no control character comes through");
}

}  // namespace tandem::fuzz
