// Packed matrices of four bits: four bytes say the sizes and the part that is read, the rest is
// blocks and scales. A part is what the whole has there.
#include "models/io/mxfp4.hpp"

#include <algorithm>
#include <vector>

#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  if (input.size() < 4) {
    return;
  }
  const auto byte = [&](std::size_t i) {
    return static_cast<std::int64_t>(static_cast<unsigned char>(input[i]));
  };
  const std::int64_t groups = 1 + byte(0) % 4;
  const std::int64_t out = 1 + byte(1) % 8;
  const auto packed = std::as_bytes(std::span(input.substr(4)));
  const auto matrices = static_cast<std::int64_t>(packed.size()) / (groups * out * 17);
  const auto scales = static_cast<std::size_t>(matrices * groups * out);
  const std::int64_t count = matrices * groups * kMxfp4Group * out;
  const Mxfp4Matrices part{.blocks = packed.first(scales * 16),
                           .scales = packed.subspan(scales * 16, scales),
                           .in = groups * kMxfp4Group,
                           .out = out};
  std::vector<float> all(static_cast<std::size_t>(count));
  unpack_mxfp4(part, 0, count, all.data());
  const std::int64_t begin = count * byte(2) / 256;
  const std::int64_t end = begin + (count - begin) * byte(3) / 255;
  std::vector<float> some(static_cast<std::size_t>(end - begin));
  unpack_mxfp4(part, begin, end, some.data());
  expect(std::equal(some.begin(), some.end(), all.begin() + begin),
         "a part is a part of the whole");
}

}  // namespace tandem::fuzz
