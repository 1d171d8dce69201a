// A file of CIFAR-10; the first byte says which kind: binary, or the same packed.
#include "models/cifar/records.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  const char kind = input.empty() ? 'b' : input.front();
  const char* const name = kind == 'x' ? "d.bin.xz" : "d.bin";
  const CifarImages images = read_cifar_file(put(input.substr(input.empty() ? 0 : 1), name));
  expect(images.pixels.size() == static_cast<std::size_t>(images.size() * kCifarPixels),
         "every image has its pixels");
}

}  // namespace tandem::fuzz
