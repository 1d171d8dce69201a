// The list of ATen's functions that are settled: what LibTorch's own header computes with oneMKL,
// none left out.
#include "engine/tensors/vml.hpp"

#include <fstream>
#include <set>
#include <string>
#include <string_view>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

TEST(VectorMath, KnowsAllFunctionsThatLibTorchGivesToOneMkl) {
  constexpr std::string_view kMacro = "IMPLEMENT_VML_MKL(";
  std::ifstream header(test::program_path("../torch_include/ATen/cpu/vml.h"));
  std::set<std::string> theirs;
  for (std::string line; std::getline(header, line);) {
    if (line.starts_with(kMacro)) {
      theirs.insert(line.substr(kMacro.size(), line.find(',') - kMacro.size()));
    }
  }
  std::set<std::string> ours;
  for (const VectorFunction& function : vector_functions()) {
    ours.insert(function.name);
  }
  EXPECT_EQ(ours, theirs);
}

TEST(VectorMath, CallsThemWhereTheyAreDefined) {
  warm_up_vml();
  for (const VectorFunction& function : vector_functions()) {
    EXPECT_TRUE(function.run(at::full({8}, 0.5)).isfinite().all().item<bool>()) << function.name;
  }
}

}  // namespace
}  // namespace tandem
