// tools/launch/node_link.hpp — the line between a launch on several hosts and its part on one of
// them (a node), over ssh's pipes: what travels, and how each end learns that the other is gone.
//
// Down, on the node's standard input: "tandem launch 4 KEY BYTES", that many bytes of a NodeOrder,
// later "go ADDRESS PORT", "signal N", and "alive" every period. Up, on its standard output, among
// the ranks' lines and told from them by kMark and KEY at their begin, which is random for each
// start and which no rank is told: "ready ADDRESS PORT", "failed RANK CODE BLAMED" (a rank, -1:
// none), "stopped RANK", "runs RANK", "ended CODE TEXT", and "refused CODE TEXT" of a node that
// starts nothing, without KEY where it read none. A node that reads the end of its input, nothing
// for kSilence periods, or what is none of these, is alone: its ranks end.
// Thread rule: one thread; one NodeLink per process.
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
inline constexpr int kSilence = 12;  // heartbeat periods
/// Between two "alive"s: TANDEM_HEARTBEAT_S, 5 s.
[[nodiscard]] std::chrono::nanoseconds heartbeat_period();

/// The orders of a node.
struct NodeOrder {
  std::string host;        // its name
  std::string other_host;  // a host that has to reach it; empty: there is none
  RankPlaces places;       // address and port: as the user gave them, empty and 0 where not
  RankSettings settings;
  std::string directory;
  std::vector<std::string> variables;  // NAME=VALUE
};
inline constexpr std::size_t kMostOrderBytes = std::size_t{1} << 20;  // the pipe's capacity
/// With the line before it.
[[nodiscard]] std::string encode(const NodeOrder& order, std::string_view key);
/// The order behind that line. Throws a user error for what no launch gives.
[[nodiscard]] NodeOrder decode(std::string_view text);

/// A host's news of its ranks: a line behind kMark and KEY.
struct News {
  enum class What : unsigned char { kReady, kFailed, kStopped, kRuns, kEnded, kRefused };
  What what = What::kReady;
  int rank = -1;                             // kFailed, kStopped, kRuns
  int code = 0;                              // kFailed, kEnded, kRefused: 0 to 255
  std::optional<int> blamed = std::nullopt;  // kFailed: a rank from 0 on
  std::string text = "";                     // kReady: "ADDRESS PORT"; kEnded, kRefused: why
};
/// Nothing for what no host says.
[[nodiscard]] std::optional<News> parse_news(std::string_view line);

class NodeLink {
 public:
  NodeLink(int from, int to);

  [[nodiscard]] int descriptor() const noexcept { return from_; }
  /// The launch at the other end is gone.
  [[nodiscard]] bool is_lost() const noexcept { return is_lost_; }
  /// When next() will find it gone, if nothing comes.
  [[nodiscard]] std::chrono::steady_clock::time_point deadline() const noexcept {
    return received_ + silence_;
  }
  /// A line that came, without "alive"s; never waits.
  [[nodiscard]] std::optional<std::string> next();
  /// Waits for it. Throws Error(kPeer) when the link is lost.
  [[nodiscard]] std::string wait();
  /// Sets its variables, too. Throws Error(kPeer) when the link is lost, a user error for an order
  /// of another version, or for none.
  [[nodiscard]] NodeOrder wait_for_order();

  template <class... Args>
  void tell(fmt::format_string<Args...> what, Args&&... args) const {
    tell_line(fmt::format(what, std::forward<Args>(args)...));
  }

 private:
  void tell_line(std::string_view text) const;
  std::optional<std::string> take_line();
  bool read_more();
  void wait_for_more();
  void lose();

  int from_;
  int to_;
  std::chrono::steady_clock::duration silence_;  // that is too long
  std::chrono::steady_clock::time_point received_;
  std::string key_;
  std::string held_;
  bool is_lost_ = false;
  bool is_garbage_ = false;  // no order came
};

}  // namespace tandem
