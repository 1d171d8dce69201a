// TANDEM_SIMD: what it takes, and that kernels obey it from the start of a program on.
#include "actors/kernels/simd_limit.hpp"

#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "actors/kernels/simd_target.hpp"
#include "tests/support/process/variable.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

TEST(SimdLimit, IsWhatTheVariableSays) {
  test::Variable variable("TANDEM_SIMD", std::nullopt);
  EXPECT_EQ(simd_limit(), SimdLimit::kTiles);
  for (const auto& [text, limit] :
       {std::pair("", SimdLimit::kTiles), std::pair("auto", SimdLimit::kTiles),
        std::pair("avx512", SimdLimit::kAvx512), std::pair("avx2", SimdLimit::kAvx2),
        std::pair("sse4", SimdLimit::kSse4)}) {
    variable.set(text);
    EXPECT_EQ(simd_limit(), limit) << text;
  }
  for (const char* wrong : {"AVX2", "avx", "512", " avx2"}) {
    variable.set(wrong);
    EXPECT_THAT(error_text([] { (void)simd_limit(); }),
                HasSubstr(fmt::format("TANDEM_SIMD is \"{}\"; it takes", wrong)));
  }
}

/// Checks the kernels of this process; the next test runs this one with each limit.
TEST(SimdLimit, IsObeyedByTheKernelsOfThisProcess) {
  const std::string target = simd_target();
  const SimdLimit limit = simd_limit();
  EXPECT_EQ(simd_allows(SimdLimit::kTiles), limit == SimdLimit::kTiles);
  EXPECT_TRUE(simd_allows(SimdLimit::kSse4));
  if (limit >= SimdLimit::kAvx2) {
    EXPECT_FALSE(simd_allows(SimdLimit::kAvx512));
    EXPECT_FALSE(target.starts_with("AVX3")) << target;
  }
  if (limit == SimdLimit::kSse4) {
    EXPECT_FALSE(target.starts_with("AVX")) << target;
  }
}

TEST(SimdLimit, HoldsFromTheStartOfAProgramOn) {
  for (const char* text : {"auto", "avx512", "avx2", "sse4"}) {
    const test::Variable variable("TANDEM_SIMD", text);
    const int status = std::system(
        "/proc/$PPID/exe --gtest_filter=SimdLimit.IsObeyedByTheKernelsOfThisProcess >/dev/null");
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << text;
  }
}

}  // namespace
}  // namespace tandem
