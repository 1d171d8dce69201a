#include "tools/launch/launch_words.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/ranges.h>
#include <sys/wait.h>

#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"
#include "tools/launch/output.hpp"

namespace tandem {

void say_line(std::string_view line) { Output::of_process().write_news(2, one_line(line) + "\n"); }

int code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("was killed by signal {} ({})", WTERMSIG(status),
                       ::strsignal(WTERMSIG(status)));
  }
  return fmt::format("exited with code {}", WEXITSTATUS(status));
}

bool is_witness(int code) { return code == static_cast<int>(ExitCode::kPeer); }

std::optional<int> Blames::across(std::size_t from,
                                  const std::function<std::size_t(int rank)>& host_of) const {
  for (const auto& [witness, blamed] : by_witness) {
    if (host_of(witness) == from && host_of(blamed) != from) {
      return blamed;
    }
  }
  return std::nullopt;
}

std::string Blames::text(const std::function<std::size_t(int rank)>& host_of,
                         const std::function<std::string(int rank)>& with_host) const {
  if (!stopped.empty()) {
    std::vector<std::string> ranks;
    for (const int rank : stopped) {
      ranks.push_back(with_host(rank));
    }
    return fmt::format("rank {} is stopped", fmt::join(ranks, " and rank "));
  }
  std::map<int, int> votes;
  std::vector<int> ranks;
  ranks.reserve(by_witness.size());
  for (const auto& [witness, blamed] : by_witness) {
    if (++votes[blamed] == 1) {
      ranks.push_back(blamed);
    }
  }
  if (ranks.empty()) {
    return "";
  }
  // A rank that blames another one has less of the fault.
  const int first = *std::ranges::max_element(
      ranks, {}, [&](int rank) { return std::pair(votes[rank], !by_witness.contains(rank)); });
  if (const std::optional<int> other = across(host_of(first), host_of)) {
    const std::optional<int> back = across(host_of(*other), host_of);
    if (back && host_of(*back) == host_of(first)) {
      return fmt::format("rank {} and rank {} blame each other: see the link between their hosts",
                         with_host(first), with_host(*other));
    }
  }
  return fmt::format("rank {} held the others up", with_host(first));
}

}  // namespace tandem
