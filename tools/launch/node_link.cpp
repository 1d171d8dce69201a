#include "tools/launch/node_link.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"
#include "runtime/util/seconds_setting.hpp"
#include "tools/launch/child_signals.hpp"
#include "tools/launch/output.hpp"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLongestWords = 512;  // bytes without the end of a line

Clock::duration silence() {
  return std::chrono::duration_cast<Clock::duration>(kSilence * heartbeat_period());
}

void set_variables(const NodeOrder& order) {
  for (const std::string& variable : order.variables) {
    const std::size_t equals = variable.find('=');
    ::setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
}

}  // namespace

std::chrono::nanoseconds heartbeat_period() {
  return seconds_setting("TANDEM_HEARTBEAT_S", std::chrono::seconds(5));
}

NodeLink::NodeLink(int from, int to)
    : from_(from), to_(to), silence_(silence()), received_(Clock::now()) {
  (void)::fcntl(from_, F_SETFL, ::fcntl(from_, F_GETFL) | O_NONBLOCK);
  ::signal(SIGPIPE, SIG_IGN);
}

// No reader of the output comes any more, either.
void NodeLink::lose() {
  is_lost_ = true;
  Output::of_process().give_up();
}

/// False: nothing is there now.
bool NodeLink::read_more() {
  char buffer[1 << 16];
  const ssize_t got = is_lost_ ? 0 : ::read(from_, buffer, sizeof(buffer));
  if (got > 0) {
    held_.append(buffer, static_cast<std::size_t>(got));
    received_ = Clock::now();
    return true;
  }
  if (got == 0 || (errno != EAGAIN && errno != EINTR) || Clock::now() >= deadline()) {
    lose();
  }
  return false;
}

/// A line that is whole; never "alive".
std::optional<std::string> NodeLink::take_line() {
  for (std::size_t end = 0; (end = held_.find('\n')) != std::string::npos;) {
    std::string line = held_.substr(0, end);
    held_.erase(0, end + 1);
    if (line != "alive") {
      return line;
    }
  }
  is_garbage_ = is_garbage_ || held_.size() > kLongestWords;
  is_lost_ = is_lost_ || is_garbage_;
  return std::nullopt;
}

std::optional<std::string> NodeLink::next() {
  std::optional<std::string> line = take_line();
  return !line && read_more() ? take_line() : std::move(line);
}

void NodeLink::wait_for_more() {
  if (is_garbage_) {
    throw user_error("launch", "what came is no order of a launch; see what ssh starts here");
  }
  if (is_lost_) {
    throw failure(ExitCode::kPeer, "launch", "the launch that this host's part belongs to is gone");
  }
  std::vector<pollfd> looked_at = {{.fd = from_, .events = POLLIN, .revents = 0}};
  Output::of_process().watch(looked_at);
  poll_until(looked_at, deadline());
  Output::of_process().flush();
}

std::string NodeLink::wait() {
  for (;;) {
    if (std::optional<std::string> line = next()) {
      return *std::move(line);
    }
    wait_for_more();
  }
}

NodeOrder NodeLink::wait_for_order() {
  const std::string first = wait();
  char key[65] = {};
  std::size_t bytes = 0;
  int end = 0;
  if (std::sscanf(first.c_str(), "tandem launch 4 %64s %zu%n", key, &bytes, &end) != 2 ||
      first.size() != static_cast<std::size_t>(end)) {
    throw user_error("launch", "this host's tandem is of another version; install the same on all");
  }
  key_ = key;
  if (bytes > kMostOrderBytes) {
    throw user_error("launch", "the order of this host has {} bytes; it takes at most {}", bytes,
                     kMostOrderBytes);
  }
  while (held_.size() < bytes) {
    if (!read_more()) {
      wait_for_more();
    }
  }
  NodeOrder order = decode(std::string_view(held_).substr(0, bytes));
  held_.erase(0, bytes);
  set_variables(order);
  silence_ = silence();
  return order;
}

void NodeLink::tell_line(std::string_view text) const {
  Output::of_process().write_news(
      to_, fmt::format("{}{}{}{}\n", kMark, key_, key_.empty() ? "" : " ", one_line(text)));
}

}  // namespace tandem
