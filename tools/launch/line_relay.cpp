#include "tools/launch/line_relay.hpp"

#include <cerrno>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace tandem {
namespace {

constexpr std::size_t kLongestLine = std::size_t{1} << 20;  // a longer one is cut

// A reader that went away is no reason to stop the ranks.
void write_all(int to, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(to, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace

LineRelay::LineRelay(int from, int to, int log, std::string prefix)
    : from_(from), to_(to), log_(log), prefix_(std::move(prefix)) {
  (void)::fcntl(from_, F_SETFL, ::fcntl(from_, F_GETFL) | O_NONBLOCK);
}

LineRelay::~LineRelay() { close(); }

void LineRelay::relay() {
  char buffer[1 << 16];
  while (from_ >= 0) {
    const ssize_t got = ::read(from_, buffer, sizeof(buffer));
    if (got > 0) {
      held_.append(buffer, static_cast<std::size_t>(got));
      pass_lines();
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      close();
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

void LineRelay::pass_lines() {
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = held_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    pass(std::string_view(held_).substr(begin, end + 1 - begin));
  }
  held_.erase(0, begin);
  if (held_.size() >= kLongestLine) {
    held_ += '\n';
    pass(held_);
    held_.clear();
  }
}

void LineRelay::pass(std::string_view line) {
  write_all(to_, prefix_ + std::string(line));
  if (log_ >= 0) {
    write_all(log_, line);
  }
}

void LineRelay::close() {
  if (from_ < 0) {
    return;
  }
  if (!held_.empty()) {
    held_ += '\n';
    pass(std::exchange(held_, {}));
  }
  ::close(std::exchange(from_, -1));
}

}  // namespace tandem
