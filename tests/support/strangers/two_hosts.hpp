// tests/support/strangers/two_hosts.hpp — ranks of two hosts: processes with a host's name of their
// own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/distributed/process_group.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/strangers/rendezvous_job.hpp"

namespace tandem::test {

/// body() in a process of its own, on host `name`.
class OnHost {
 public:
  OnHost(const std::string& name, const std::function<void()>& body)
      : process_([&](int pipe) {
          if (::unshare(CLONE_NEWUTS) != 0 || ::sethostname(name.data(), name.size()) != 0) {
            (void)!::write(pipe, "skip", 4);
          } else {
            body();
          }
        }) {}

  /// Returns the exit code and the error that the process threw. Call it once.
  [[nodiscard]] std::string error() const {
    const std::string text = process_.text();
    return fmt::format("{} {}", WEXITSTATUS(process_.wait()), text);
  }

 private:
  ChildProcess process_;
};

inline constexpr std::string_view kNoNames = "a process cannot have a host's name of its own here";

/// Rank r, on one of two hosts.
inline Environment of_two_hosts(const Job& job, int rank) {
  Environment environment = job.of(rank);
  environment.local_world = job.world / 2;
  environment.local_rank = rank % environment.local_world;
  environment.address_given = true;
  return environment;
}

/// Returns each rank's error. Skipped where a process cannot have a host's name of its own.
inline std::vector<std::string> on_two_hosts(
    const Job& job, const std::function<void(ProcessGroup&)>& body,
    const std::function<ReductionOrder(int rank)>& order = [](int) {
      return ReductionOrder::kExact;
    }) {
  const auto join = [&](int rank) {
    return
        [&, rank] { body(*ProcessGroup::join(of_two_hosts(job, rank), job.timeout, order(rank))); };
  };
  std::vector<std::unique_ptr<OnHost>> ranks;
  ranks.reserve(static_cast<std::size_t>(job.world));
  for (int rank = 0; rank < job.world; ++rank) {
    ranks.push_back(
        std::make_unique<OnHost>(2 * rank < job.world ? "host-a" : "host-b", join(rank)));
  }
  std::vector<std::string> errors;
  errors.reserve(ranks.size());
  for (const auto& rank : ranks) {
    errors.push_back(rank->error());
  }
  return errors;
}

}  // namespace tandem::test
