#include "engine/distributed/backend_choice.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

std::string chosen(const std::vector<RankPlace>& placements) {
  try {
    return std::string(name_of(choose_backend(placements)));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUserInput);
    return error.what();
  }
}

TEST(BackendChoice, FollowsFromGpusAndHosts) {
  EXPECT_EQ(chosen({{"a", ""}}), "self");
  EXPECT_EQ(chosen({{"a", "g0"}}), "staged");
  EXPECT_EQ(chosen({{"a", ""}, {"a", ""}, {"a", ""}}), "shm");
  EXPECT_EQ(chosen({{"a", "g0"}, {"a", "g1"}}), "nccl");
  EXPECT_EQ(chosen({{"a", "g0"}, {"a", "g0"}}), "staged");
  EXPECT_EQ(chosen({{"a", "g0"}, {"a", "g1"}, {"a", "g0"}}), "staged");
  EXPECT_EQ(chosen({{"a", "g0"}, {"b", "g1"}}), "nccl");
  // A partition of a GPU can have its uuid on two machines' lists; on another host it is another
  // one.
  EXPECT_EQ(chosen({{"a", "g0"}, {"b", "g0"}}), "nccl");
}

TEST(BackendChoice, RefusesWhatNothingJoins) {
  EXPECT_EQ(chosen({{"boot net one", ""}, {"boot net one", ""}, {"boot net two", ""}}),
            "[ranks] rank 0 is on host one, rank 2 on host two (or in another container); "
            "collectives need all ranks on one host");
  EXPECT_EQ(chosen({{"a", "g0"}, {"a", "g1"}, {"a", ""}}),
            "[ranks] rank 0 computes on a GPU, rank 2 on the CPU; give every rank a GPU, or use "
            "device cpu");
  EXPECT_EQ(chosen({{"a", ""}, {"a", "g1"}}),
            "[ranks] rank 1 computes on a GPU, rank 0 on the CPU; give every rank a GPU, or use "
            "device cpu");
  EXPECT_EQ(
      chosen({{"a", "g0"}, {"a", "g1"}, {"a", "g1"}, {"x b", "g0"}}),
      "[ranks] ranks 1 and 2 share a GPU while rank 3 is on another host, b; give each rank a "
      "GPU of its own");
}

}  // namespace
}  // namespace tandem
