#include "runtime/device/nvml.hpp"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

TEST(Nvml, KnowsTheFreeMemoryOfAGpuByItsUuid) {
  const std::string library = test::program_path("libfake_nvml.so");
  for (int time = 0; time < 2; ++time) {  // it starts anew
    const Nvml nvml(library.c_str());
    EXPECT_EQ(nvml.free_bytes("00112233445566778899aabbccddeeff"), std::uint64_t{5} << 30);
    EXPECT_EQ(nvml.free_bytes("ff112233445566778899aabbccddeeff"), 0U);
  }
}

TEST(Nvml, KnowsNothingWhereTheLibraryIsNotThere) {
  EXPECT_EQ(Nvml("libno_such_library.so").free_bytes("00112233445566778899aabbccddeeff"), 0U);
  EXPECT_EQ(Nvml("libc.so.6").free_bytes("00112233445566778899aabbccddeeff"), 0U);
}

}  // namespace
}  // namespace tandem
