// test_sim [GoogleTest's flags]             the tests
// test_sim --seeds N [--first F] [--bug B]  N seeds, until one breaks a promise
// test_sim --seed S [--bug B]               one seed; prints the tail of its event log if it breaks
// a promise
// The first flag may choose another rehearsal than the seed does:
//   --many-hosts   collectives of 64 hosts with 8 ranks each
//   --each-fault   a small training, again and again, in which each operation fails once, and the
//                  rank is stopped during each
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/harness.hpp"
#include "tests/support/process/own_folder.hpp"

namespace {

using namespace tandem::sim_test;

int usage() {
  std::fprintf(stderr,
               "test_sim [--many-hosts | --each-fault] --seed S | --seeds N [--first F] [--bug "
               "NAME], NAME one of");
  for (int i = 1; i < kBugs; ++i) {
    std::fprintf(stderr, " %s", name_of(static_cast<tandem::Bug>(i)));
  }
  std::fprintf(stderr, "\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 1) {
    std::optional<tandem::test::OwnFolder> folder;
    if (!GTEST_FLAG_GET(list_tests)) {
      folder.emplace();
    }
    return RUN_ALL_TESTS();
  }
  std::uint64_t seed = 0, seeds = 0, first = 0;
  bool one = false;
  const std::string kind = argv[1];
  Outcome (*const rehearse)(std::uint64_t) = kind == "--many-hosts"   ? &run_many_hosts
                                             : kind == "--each-fault" ? &run_each_fault
                                                                      : &run_seed;
  for (int i = rehearse == &run_seed ? 1 : 2; i + 1 < argc + 1; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) {
      return usage();
    }
    const std::string value = argv[i + 1];
    if (flag == "--bug") {
      tandem::g_planted_bug = bug_named(value);
      if (static_cast<int>(tandem::g_planted_bug) == kBugs) {
        return usage();
      }
    } else if (flag == "--seed") {
      one = true;
      seed = std::strtoull(value.c_str(), nullptr, 10);
    } else if (flag == "--seeds") {
      seeds = std::strtoull(value.c_str(), nullptr, 10);
    } else if (flag == "--first") {
      first = std::strtoull(value.c_str(), nullptr, 10);
    } else {
      return usage();
    }
  }
  if (one) {
    const Outcome outcome = rehearse(seed);
    std::printf("seed %llu (%s, runs: %llu) keeps every promise; log %016llx\n",
                static_cast<unsigned long long>(seed), outcome.scenario,
                static_cast<unsigned long long>(outcome.runs),
                static_cast<unsigned long long>(outcome.hash));
    return 0;
  }
  const Range range = run_range(first, seeds, false, rehearse);
  if (range.found) {
    std::printf("seed %llu breaks a promise: --seed %llu repeats it\n",
                static_cast<unsigned long long>(range.seed),
                static_cast<unsigned long long>(range.seed));
    return 1;
  }
  std::printf("%llu seeds keep every promise\n", static_cast<unsigned long long>(seeds));
  return 0;
}
