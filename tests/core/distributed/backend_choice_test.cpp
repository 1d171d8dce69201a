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
  EXPECT_EQ(chosen({{"a", ""}, {"a", ""}, {"b", ""}, {"b", ""}}), "hosts");
  EXPECT_EQ(chosen({{"a", ""}, {"b", ""}, {"c", ""}}), "hosts");
  EXPECT_EQ(chosen({{"a", "g0"}, {"a", "g0"}, {"b", "g0"}, {"b", "g0"}}), "staged");
  // A partition of a GPU can have its uuid on two machines' lists; on another host it is another
  // one.
  EXPECT_EQ(chosen({{"a", "g0"}, {"b", "g0"}}), "nccl");
}

TEST(BackendChoice, RefusesWhatNothingJoins) {
  EXPECT_EQ(
      chosen({{"boot net one", ""}, {"boot net one", ""}, {"boot net two", ""}}),
      "[ranks] ranks 0 to 1 on host one, rank 2 on host two; every host needs as many ranks as "
      "the others, with neighbouring numbers");
  EXPECT_EQ(chosen({{"a", ""}, {"b", ""}, {"a", ""}, {"b", ""}}),
            "[ranks] rank 0 on host a, rank 1 on host b, rank 2 on host a, rank 3 on host b; every "
            "host needs as many ranks as the others, with neighbouring numbers");
  EXPECT_EQ(chosen({{"a", "g0"}, {"a", "g1"}, {"a", ""}}),
            "[ranks] rank 0 computes on a GPU, rank 2 on the CPU; give every rank a GPU, or use "
            "device cpu");
  EXPECT_EQ(chosen({{"a", ""}, {"a", "g1"}}),
            "[ranks] rank 1 computes on a GPU, rank 0 on the CPU; give every rank a GPU, or use "
            "device cpu");
  EXPECT_EQ(
      chosen({{"a", "g0"}, {"a", "g1"}, {"a", "g1"}, {"x b", "g0"}}),
      "[ranks] ranks 0 to 2 on host a, rank 3 on host b; every host needs as many ranks as the "
      "others, with neighbouring numbers");
}

TEST(BackendChoice, NcclJoinsHostsWithAsManyGpusEach) {
  EXPECT_EQ(chosen({{"a", "g0"}, {"a", "g1"}, {"b", "g0"}, {"b", "g1"}}), "nccl");
  EXPECT_EQ(
      chosen({{"a", "g0"}, {"a", "g1"}, {"b", "g0"}}),
      "[ranks] ranks 0 to 1 on host a, rank 2 on host b; every host needs as many ranks as the "
      "others, with neighbouring numbers");
}

TEST(BackendChoice, NcclAddsBetweenGpusAlone) {
  const auto refused = [](BackendKind kind, int world) -> std::string {
    try {
      require_order(ReductionOrder::kNccl, kind, world);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUserInput);
      return error.what();
    }
  };
  EXPECT_EQ(refused(BackendKind::kNccl, 2), "");
  EXPECT_EQ(refused(BackendKind::kStaged, 1), "") << "nothing is added";
  EXPECT_EQ(refused(BackendKind::kStaged, 2),
            "[ranks] --reduction nccl is for ranks with a GPU of their own each, and these share "
            "GPUs; use exact or fast");
  EXPECT_THAT(refused(BackendKind::kHosts, 2), ::testing::HasSubstr("these compute on the CPU"));
  for (const ReductionOrder order : {ReductionOrder::kExact, ReductionOrder::kFast}) {
    EXPECT_NO_THROW(require_order(order, BackendKind::kHosts, 2));
  }
}

}  // namespace
}  // namespace tandem
