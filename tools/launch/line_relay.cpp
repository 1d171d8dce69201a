#include "tools/launch/line_relay.hpp"

#include <cerrno>
#include <csignal>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace tandem {
namespace {

constexpr std::size_t kLongestLine = std::size_t{1} << 20;  // a longer one is cut

volatile std::sig_atomic_t output_given_up = 0;

void write_while(int to, std::string_view text, bool (*goes_on)()) noexcept {
  while (!text.empty() && goes_on()) {
    const ssize_t written = ::write(to, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace

void write_line(int to, std::string_view line) noexcept {
  write_while(to, line, [] { return output_given_up == 0; });
}

void give_up_output() noexcept { output_given_up = 1; }

void write_log(int file, std::string_view line) noexcept {
  write_while(file, line, [] { return true; });
}

LineRelay::LineRelay(int from, Sink sink) : from_(from), sink_(std::move(sink)) {
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
    sink_(std::string_view(held_).substr(begin, end + 1 - begin));
  }
  held_.erase(0, begin);
  if (held_.size() >= kLongestLine) {
    held_ += '\n';
    sink_(held_);
    held_.clear();
  }
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

OutputRelay::OutputRelay(int output, int errors, const Sink& sink)
    : output_(output, [sink](std::string_view line) { sink(1, line); }),
      errors_(errors, [sink](std::string_view line) { sink(2, line); }) {}

void OutputRelay::relay() {
  output_.relay();
  errors_.relay();
}

void OutputRelay::watch(std::vector<pollfd>& looked_at) const {
  for (const LineRelay* relay : {&output_, &errors_}) {
    if (relay->descriptor() >= 0) {
      looked_at.push_back({.fd = relay->descriptor(), .events = POLLIN, .revents = 0});
    }
  }
}

}  // namespace tandem
