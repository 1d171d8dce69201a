// tools/launch/line_relay.hpp — a pipe's bytes, passed on as whole lines.
//
// Each line is one call of the sink, so that lines of several ranks never mix. What comes without a
// newline at the end gets one. Of one thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <poll.h>

namespace tandem {

/// All of it, however long the reader takes. A reader that went away is no reason to stop the
/// ranks.
void write_line(int to, std::string_view line) noexcept;
/// From now on write_line() waits for no reader; one that does goes on at the next signal. Safe in
/// a signal's handler.
void give_up_output() noexcept;
/// To a file, which has no reader.
void write_log(int file, std::string_view line) noexcept;

class LineRelay {
 public:
  /// Gets each line, with its newline.
  using Sink = std::function<void(std::string_view line)>;

  /// Takes over `from`, the reading end.
  LineRelay(int from, Sink sink);
  ~LineRelay();
  LineRelay(const LineRelay&) = delete;
  LineRelay& operator=(const LineRelay&) = delete;

  /// -1: at its end.
  [[nodiscard]] int descriptor() const noexcept { return from_; }
  /// Passes on what is there; never waits for more.
  void relay();

 private:
  void pass_lines();
  void close();

  int from_;
  Sink sink_;
  std::string held_;  // the line that is not whole yet
};

/// The output and the errors of a child.
class OutputRelay {
 public:
  /// Gets each line, with 1 for the output, 2 for the errors.
  using Sink = std::function<void(int to, std::string_view line)>;

  /// Takes over the reading ends.
  OutputRelay(int output, int errors, const Sink& sink);
  void relay();
  /// Adds those that are not at their end.
  void watch(std::vector<pollfd>& looked_at) const;

 private:
  LineRelay output_;
  LineRelay errors_;
};

}  // namespace tandem
