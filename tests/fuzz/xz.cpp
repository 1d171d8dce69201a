// An .xz file.
#include "models/cifar/xz.hpp"

#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  constexpr std::size_t kLimit = 1 << 20;
  expect(unpack_xz(input, "d.xz", "fuzz", kLimit).size() <= kLimit, "unpacked size is bounded");
}

}  // namespace tandem::fuzz
