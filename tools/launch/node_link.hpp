// tools/launch/node_link.hpp — the line between a launch on several hosts and its part on one of
// them (a node), over ssh's pipes: what travels, and how each end learns that the other is gone.
//
// Down, on the node's standard input: a NodeOrder, later "go ADDRESS PORT", "signal N", and "alive"
// every beat. Up, on its standard output, among the ranks' lines and told from them by kMark at
// their begin, which no line of a rank has, since each has a prefix: "ready ADDRESS PORT", "failed
// RANK CODE BLAMED" (a rank, -1: none), "stopped RANK", "runs RANK", "ended CODE TEXT", and
// "refused CODE TEXT" of a node that starts nothing. A node that reads the end of its input, or
// nothing for kSilence beats, is alone: its ranks end. Of one thread; one NodeLink per process.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tools/launch/rank_process.hpp"

namespace tandem {

inline constexpr char kMark = '\x1e';
inline constexpr int kSilence = 12;  // beats
/// Between two "alive"s: TANDEM_HEARTBEAT_S, 5 s.
[[nodiscard]] std::chrono::nanoseconds beat();

/// What a node is to do.
struct NodeOrder {
  std::string host;        // its name
  std::string other_host;  // of one that has to reach it; empty: there is none
  RankPlaces places;       // address and port: as the user gave them, empty and 0 where not
  RankSettings settings;
  std::string directory;
  std::vector<std::string> variables;  // NAME=VALUE
};
[[nodiscard]] std::string encode(const NodeOrder& order);

class NodeLink {
 public:
  NodeLink(int from, int to);

  [[nodiscard]] int descriptor() const noexcept { return from_; }
  /// The launch at the other end is gone.
  [[nodiscard]] bool is_lost() const noexcept;
  /// A line that came, without "alive"s; never waits.
  [[nodiscard]] std::optional<std::string> next();
  /// Waits for it. Throws Error(kPeer) when the link is lost.
  [[nodiscard]] std::string wait();
  /// Sets its variables, too. Throws Error(kPeer) when the link is lost, a user error for an order
  /// of another version.
  [[nodiscard]] NodeOrder wait_for_order();

  template <class... Args>
  void tell(fmt::format_string<Args...> what, Args&&... args) const {
    tell_line(fmt::format(what, std::forward<Args>(args)...));
  }

 private:
  void tell_line(std::string_view text) const;

  int from_;
  int to_;
  std::chrono::nanoseconds silence_;  // that is too long
  std::string held_;
  bool at_end_ = false;
};

}  // namespace tandem
