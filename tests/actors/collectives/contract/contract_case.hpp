// tests/actors/collectives/contract/contract_case.hpp — the suite's cases, each of which is a back
// end with a number of ranks, and how a test runs a program on them.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/actors/collectives/contract/backend_world.hpp"

namespace tandem::test {

struct ContractCase {
  const Backend* backend;
  std::uint32_t ranks;
};
inline void PrintTo(const ContractCase& one, std::ostream* out) {
  *out << one.backend->name << " of " << one.ranks << (one.ranks == 1 ? " rank" : " ranks");
}
inline std::string name_of_case(const ::testing::TestParamInfo<ContractCase>& info) {
  return fmt::format("{}_of_{}_rank{}", info.param.backend->name, info.param.ranks,
                     info.param.ranks == 1 ? "" : "s");
}
inline std::vector<ContractCase> contract_cases() {
  std::vector<ContractCase> cases;
  for (const Backend& backend : all_backends()) {
    for (const std::uint32_t ranks : backend.worlds) {
      cases.push_back({&backend, ranks});
    }
  }
  return cases;
}

class ContractTest : public ::testing::TestWithParam<ContractCase> {
 protected:
  void SetUp() override {
    if (const std::string missing = backend().missing(); !missing.empty()) {
      GTEST_SKIP() << missing;
    }
  }
  [[nodiscard]] static const Backend& backend() { return *GetParam().backend; }
  [[nodiscard]] static std::uint32_t ranks() { return GetParam().ranks; }

  /// Why the back end does not promise that; empty: it does.
  [[nodiscard]] static std::string why_not(Promise promise) {
    if (ranks() == 1 && promise <= Promise::kAddsTrees) {
      return "a single rank has no peers";
    }
    if (ranks() > 1 && promise == Promise::kKeepsTypes) {
      return "the values of several ranks are added in fp32";
    }
    const auto found = backend().not_promised.find(promise);
    return found != backend().not_promised.end() ? found->second : std::string();
  }

  /// Runs the program in each execution of the back end; nothing may be left behind.
  static void run_each(const Program& program,
                       const std::function<void(const std::vector<Ending>&)>& check) {
    for (std::uint64_t seed = 0; seed < backend().seeds; ++seed) {
      SCOPED_TRACE(fmt::format("seed {}", seed));
      const WorldRun run = backend().run(ranks(), seed, program);
      EXPECT_EQ(run.left_behind, "");
      check(run.ranks);
    }
  }
  static void expect_well(const Program& program) {
    run_each(program, [](const std::vector<Ending>& endings) {
      for (std::size_t rank = 0; rank < endings.size(); ++rank) {
        EXPECT_EQ(endings[rank].text, "") << "rank " << rank;
      }
    });
  }
};

/// Skips a test of a promise that the back end does not make, and prints the reason.
#define TANDEM_NEEDS_PROMISE(promise)                         \
  if (const std::string why = why_not(promise); !why.empty()) \
  GTEST_SKIP() << backend().name << " does not promise that " << sentence_of(promise) << ": " << why

}  // namespace tandem::test
