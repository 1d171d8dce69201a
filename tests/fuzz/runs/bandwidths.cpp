// bandwidths.tsv of the user's cache: a speed that is one, or none.
#include "engine/placement/bandwidths.hpp"

#include <cmath>

#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  const BandwidthCache cache(put(input, "bandwidths.tsv").string());
  const double speed = cache.get("a machine", [] { return 5e9; });
  expect(std::isfinite(speed) && speed > 0, "a speed is above 0");
  expect(cache.get("a machine", [] { return 7e9; }) == speed, "what was measured is kept");
}

}  // namespace tandem::fuzz
