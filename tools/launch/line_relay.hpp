// tools/launch/line_relay.hpp — a pipe's bytes, passed on as whole lines with a prefix.
//
// Each line is one write(), so that lines of several ranks never mix. What comes without a newline
// at the end gets one. Of one thread.
#pragma once

#include <string>

namespace tandem {

class LineRelay {
 public:
  /// Takes over `from`, the reading end. `log`: a file that gets the lines without prefix; -1:
  /// none.
  LineRelay(int from, int to, int log, std::string prefix);
  ~LineRelay();
  LineRelay(const LineRelay&) = delete;
  LineRelay& operator=(const LineRelay&) = delete;

  /// -1: at its end.
  [[nodiscard]] int descriptor() const noexcept { return from_; }
  /// Passes on what is there; never waits for more.
  void relay();

 private:
  void pass_lines();
  void pass(std::string_view line);
  void close();

  int from_;
  int to_;
  int log_;
  std::string prefix_;
  std::string held_;  // the line that is not whole yet
};

}  // namespace tandem
