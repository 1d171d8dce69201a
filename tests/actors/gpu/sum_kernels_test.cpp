// Sums of gradients on a GPU: the arithmetic that they share with the CPU, here; the kernels
// themselves, where a GPU is. And the real library, where it is installed.
#include "actors/gpu/sum_kernels.hpp"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "actors/collectives/nccl/nccl_api.hpp"
#include "actors/collectives/norm_limbs.hpp"
#include "actors/gpu/norm_limbs.hpp"
#include "runtime/device/gpu_probe.hpp"
#include "tests/support/gpu/on_gpu.hpp"
#include "tests/support/reduction_reference.hpp"

namespace tandem {
namespace {

/// The norm as a GPU takes it, thread by thread: 32 lanes of a warp, added as a tree, then three
/// limbs.
void add_like_a_warp(const float* values, std::size_t count, std::uint64_t* limbs) {
  double lanes[norm::kLanes] = {};
  for (unsigned k = 0; k < norm::kBlockElements && k < count; ++k) {
    const auto value = static_cast<double>(values[k]);
    lanes[k % norm::kLanes] = std::fma(value, value, lanes[k % norm::kLanes]);
  }
  for (unsigned half = norm::kLanes / 2; half > 0; half /= 2) {
    double shuffled[norm::kLanes];
    for (unsigned k = 0; k < norm::kLanes; ++k) {
      shuffled[k] = lanes[k + half < norm::kLanes ? k + half : k];
    }
    for (unsigned k = 0; k < norm::kLanes; ++k) {
      lanes[k] += shuffled[k];  // all of them do, as threads would; lane 0 counts
    }
  }
  const norm::Addends addends = norm::addends_of(lanes[0]);
  for (unsigned k = 0; k < addends.count; ++k) {
    limbs[addends.index + k] += addends.limbs[k];
  }
}

TEST(NormDigits, AWarpMakesTheBitsOfTheCpu) {
  constexpr std::size_t kElements = std::size_t{512} * 50 + 77;
  for (std::uint32_t seed = 0; seed < 4; ++seed) {
    std::vector<float> values(kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      values[i] = test::value_of(seed, 1, i) * (i % 3 == 0 ? 1e-20F : 1.0F);
    }
    if (seed == 2) {
      values[700] = INFINITY;
    } else if (seed == 3) {
      values[kElements - 1] = std::nanf("");
    }
    std::vector<std::uint64_t> limbs(norm::kSumLimbs);
    for (std::size_t at = 0; at < kElements; at += norm::kBlockElements) {
      add_like_a_warp(values.data() + at, kElements - at, limbs.data());
    }
    GradientNorm expected;
    add_norm(values.data(), DType::kF32, 0, kElements, expected);
    const std::span<const std::uint64_t, ExactSum::kLimbs> all(limbs.data(), ExactSum::kLimbs);
    EXPECT_EQ(ExactSum::from_limbs(all), expected.sum_of_squares) << seed;
  }
}

TEST(NormDigits, EveryDoubleHasTheDigitsOfTheExactSum) {
  std::mt19937_64 random(1);
  std::vector<double> values = {0.0,
                                std::numeric_limits<double>::denorm_min(),
                                std::numeric_limits<double>::min(),
                                std::numeric_limits<double>::max(),
                                std::numeric_limits<double>::infinity(),
                                std::numeric_limits<double>::quiet_NaN()};
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t bits = random() >> 1;  // non-negative
    double value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    values.push_back(value);
  }
  for (const double value : values) {
    std::vector<std::uint64_t> limbs(norm::kSumLimbs);
    const norm::Addends addends = norm::addends_of(value);
    ASSERT_LE(addends.index + addends.count, norm::kSumLimbs);
    for (unsigned k = 0; k < addends.count; ++k) {
      limbs[addends.index + k] += addends.limbs[k];
    }
    ExactSum expected;
    expected.add(value);
    const std::span<const std::uint64_t, ExactSum::kLimbs> all(limbs.data(), ExactSum::kLimbs);
    ASSERT_EQ(ExactSum::from_limbs(all), expected) << value;
  }
}

TEST(NormDigits, FiniteIsFinite) {
  EXPECT_TRUE(norm::is_finite(0.0F));
  EXPECT_TRUE(norm::is_finite(-std::numeric_limits<float>::max()));
  EXPECT_FALSE(norm::is_finite(-INFINITY));
  EXPECT_FALSE(norm::is_finite(std::nanf("")));
}

// ---- on a GPU ----
using test::OnGpu;

/// Three ranks' parts, seen from rank 1, added to what is there; against the CPU's bits.
void compare_on_gpu(OnGpu& gpu, DType type, std::size_t n, bool add) {
  constexpr std::uint32_t kWorld = 3;
  const std::size_t width = bytes_of(type);
  std::vector<std::byte> parts(kWorld * n * width);
  std::vector<float> expected(n, 0.5F);
  for (std::uint32_t r = 0; r < kWorld; ++r) {
    test::fill_block(parts.data() + r * n * width, type, n, r, 0);
  }
  const DeviceBuffer others = gpu.buffer(parts.data(), parts.size());
  const DeviceBuffer own = gpu.buffer(parts.data() + n * width, n * width);
  const DeviceBuffer sum = gpu.buffer(expected.data(), n * 4);
  const DeviceBuffer limbs = gpu.device.allocate(sizeof(NormLimbs));
  const RankOrderSum arguments{.own = own.data(),
                               .others = others.data(),
                               .stride_bytes = n * width,
                               .world = kWorld,
                               .rank = 1,
                               .block_type = static_cast<int>(type),
                               .add = add,
                               .accumulator = reinterpret_cast<float*>(sum.data()),
                               .elements = n,
                               .norm = reinterpret_cast<std::uint64_t*>(limbs.data())};
  gpu.stream.launch("add", {}, [&](void* native) {
    EXPECT_EQ(SumKernels::load().clear_norm(arguments.norm, native), 0);
    EXPECT_EQ(SumKernels::load().add_in_rank_order(arguments, native), 0);
  });
  std::vector<float> got(n);
  NormLimbs norm;
  gpu.fetch(got.data(), sum);
  gpu.fetch(&norm, limbs);
  gpu.wait();
  GradientNorm expected_norm;
  for (std::uint32_t r = 0; r < kWorld; ++r) {
    accumulate(expected.data(), parts.data() + r * n * width, type, 0, n,
               r == 0 && !add ? AccumulateMode::kOverwrite : AccumulateMode::kAdd);
  }
  add_norm(expected.data(), DType::kF32, 0, n, expected_norm);
  EXPECT_EQ(0, std::memcmp(got.data(), expected.data(), n * 4));
  EXPECT_EQ(merge_norms({&norm, 1}).sum_of_squares, expected_norm.sum_of_squares);
  EXPECT_EQ(norm.first_bad_element, expected_norm.first_bad_element);
}

TEST(SumKernels, RealOnesMakeTheBitsOfTheCpu) {
  if (gpus().empty()) {
    GTEST_SKIP() << "no GPU here";
  }
  OnGpu gpu;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const std::size_t n : {std::size_t{512}, std::size_t{512} * 5001 + 13}) {
      for (const bool add : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name_of(type), n, add));
        compare_on_gpu(gpu, type, n, add);
      }
    }
  }
}

// ---- the real library ----
TEST(NcclApi, RealLibraryAnswers) {
  const NcclApi* api = nullptr;
  try {
    api = &NcclApi::load();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kRefused);
    GTEST_SKIP() << error.what();
  }
  int version = 0;
  EXPECT_EQ(api->version(&version), NcclResult::kSuccess);
  EXPECT_GE(version, 21800);
  EXPECT_STREQ(api->text_of(NcclResult::kSuccess), "no error");
  EXPECT_STREQ(api->text_of(NcclResult::kInProgress), "NCCL operation in progress");
  EXPECT_NE(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT"), nullptr);
}

// In a process of its own: the library is looked for once.
TEST(NcclApiDeathTest, ALibraryThatIsNotThereIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("TANDEM_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
        try {
          (void)NcclApi::load();
        } catch (const Error& error) {
          fmt::print(stderr, "{}", error.what());
          ::_exit(static_cast<int>(error.code()));
        }
      },
      ::testing::ExitedWithCode(3),
      "no NCCL library, tried /nowhere/libnccl.so.2 .*set TANDEM_NCCL_LIBRARY|this build has no "
      "NCCL");
}

}  // namespace
}  // namespace tandem
