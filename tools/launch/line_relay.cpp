#include "tools/launch/line_relay.hpp"

#include <cerrno>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace tandem {
namespace {

constexpr std::size_t kTurnBytes = std::size_t{1} << 16;
constexpr int kMostTurns = 16;  // for the rest: an ordinary user's largest pipe

}  // namespace

LineRelay::LineRelay(int from, Sink sink, std::size_t longest)
    : from_(from), sink_(std::move(sink)), longest_(longest) {
  (void)::fcntl(from_, F_SETFL, ::fcntl(from_, F_GETFL) | O_NONBLOCK);
}

LineRelay::~LineRelay() { close(); }

bool LineRelay::relay() {
  char buffer[kTurnBytes];
  const ssize_t got = from_ >= 0 ? ::read(from_, buffer, sizeof(buffer)) : 0;
  if (got > 0) {
    held_.append(buffer, static_cast<std::size_t>(got));
    pass_lines();
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    close();
  }
  return got > 0;
}

void LineRelay::pass_lines() {
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = held_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    pass(std::string_view(held_).substr(begin, end + 1 - begin));
  }
  held_.erase(0, begin);
  while (held_.size() >= longest_) {
    pass(held_.substr(0, longest_) + "\n");
    held_.erase(0, longest_);
  }
}

void LineRelay::pass(std::string_view line) {
  for (; line.size() > longest_ + 1; line.remove_prefix(longest_)) {
    sink_(std::string(line.substr(0, longest_)) + "\n");
  }
  sink_(line);
}

void LineRelay::close() {
  if (from_ < 0) {
    return;
  }
  if (!held_.empty()) {
    held_ += '\n';
    sink_(std::exchange(held_, {}));
  }
  ::close(std::exchange(from_, -1));
}

OutputRelay::OutputRelay(int output, int errors, const Sink& sink, std::size_t longest)
    : output_(
          output, [sink](std::string_view line) { sink(1, line); }, longest),
      errors_(errors, [sink](std::string_view line) { sink(2, line); }, longest) {}

void OutputRelay::relay() {
  output_.relay();
  errors_.relay();
}

void OutputRelay::relay_rest() {
  for (LineRelay* relay : {&output_, &errors_}) {
    for (int turn = 0; turn < kMostTurns && relay->relay(); ++turn) {
    }
  }
}

void OutputRelay::watch(std::vector<pollfd>& looked_at) const {
  for (const LineRelay* relay : {&output_, &errors_}) {
    if (relay->descriptor() >= 0) {
      looked_at.push_back({.fd = relay->descriptor(), .events = POLLIN, .revents = 0});
    }
  }
}

}  // namespace tandem
