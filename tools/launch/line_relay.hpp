// tools/launch/line_relay.hpp — a pipe's bytes, passed on as whole lines.
//
// Each line is one call of the sink, so that lines of several ranks never mix. A last line without
// a newline gets one. A turn is one read, so that a writer without end holds up no other. Thread
// rule: one thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <poll.h>

namespace tandem {

/// A longer line of a rank is cut.
inline constexpr std::size_t kLongestLine = std::size_t{1} << 20;

class LineRelay {
 public:
  /// Gets each line, with its newline.
  using Sink = std::function<void(std::string_view line)>;

  /// Takes over `from`, the reading end. Lines of more than `longest` bytes are cut into several.
  LineRelay(int from, Sink sink, std::size_t longest = kLongestLine);
  ~LineRelay();
  LineRelay(const LineRelay&) = delete;
  LineRelay& operator=(const LineRelay&) = delete;

  /// -1: at its end.
  [[nodiscard]] int descriptor() const noexcept { return from_; }
  /// One read of what is there; never waits for more. False: there was nothing.
  bool relay();

 private:
  void pass_lines();
  void pass(std::string_view line);
  void close();

  int from_;
  Sink sink_;
  std::size_t longest_;
  std::string held_;  // the line that is not whole yet
};

/// The output and the errors of a child.
class OutputRelay {
 public:
  /// Gets each line, with 1 for the output, 2 for the errors.
  using Sink = std::function<void(int to, std::string_view line)>;

  /// Takes over the reading ends.
  OutputRelay(int output, int errors, const Sink& sink, std::size_t longest = kLongestLine);
  /// A turn.
  void relay();
  /// Relays what its processes wrote before they ended, however few turns that had: as much as
  /// pipes hold.
  void relay_rest();
  /// Adds those that are not at their end.
  void watch(std::vector<pollfd>& looked_at) const;

 private:
  LineRelay output_;
  LineRelay errors_;
};

}  // namespace tandem
