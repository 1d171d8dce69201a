// tools/launch/launch_words.hpp — how a launcher speaks of ranks and of their ends. Any thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace tandem {

/// The end of a start.
struct LaunchEnd {
  int code = 0;              // 0, or of the rank that failed first (128 + signal)
  std::string failure;       // "rank 1 of 2 exited with code 7; see its output"; empty: none failed
  bool interrupted = false;  // by a signal to the launcher
  bool began = true;         // its ranks
  std::vector<std::string> lost_hosts = {};  // no connection to them, or none any more
};

void say_line(std::string_view line);
/// A line beside those of the ranks, on stderr; what it quotes of files and ranks is escaped.
template <class... Args>
void say(fmt::format_string<Args...> what, Args&&... args) {
  say_line(fmt::format(what, std::forward<Args>(args)...));
}

/// The code that a shell would give a wait status, and words for it.
[[nodiscard]] int code_of(int status);
[[nodiscard]] std::string describe_end(int status);
/// Exit code 4: the rank ended because another one did.
[[nodiscard]] bool is_witness(int code);

/// The ranks that the witnesses of several hosts waited for.
struct Blames {
  std::set<int> stopped;          // ranks
  std::map<int, int> by_witness;  // the rank that it blames

  /// "rank 3 of 4 (host b) held the others up"; empty: they do not say.
  [[nodiscard]] std::string text(const std::function<std::size_t(int rank)>& host_of,
                                 const std::function<std::string(int rank)>& with_host) const;

 private:
  /// A rank of another host that witnesses of host `from` blame.
  [[nodiscard]] std::optional<int> across(
      std::size_t from, const std::function<std::size_t(int rank)>& host_of) const;
};

}  // namespace tandem
