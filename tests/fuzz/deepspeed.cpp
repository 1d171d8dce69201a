// A DeepSpeed JSON: what is accepted, written with all its defaults, is accepted and means the
// same.
#include "engine/config/config.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  const Config config = parse_config(input, "ds.json", 2);
  (void)report_lines(config);
  const std::string resolved = resolved_json(config);
  expect(resolved_json(parse_config(resolved, "resolved", 2)) == resolved,
         "a resolved config reads back as itself");
}

}  // namespace tandem::fuzz
