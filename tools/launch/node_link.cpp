#include "tools/launch/node_link.hpp"

#include <cerrno>
#include <charconv>
#include <concepts>
#include <csignal>
#include <cstdlib>

#include <fcntl.h>
#include <poll.h>
#include <sys/time.h>
#include <unistd.h>

#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"
#include "runtime/util/seconds_setting.hpp"
#include "tools/launch/launch_words.hpp"
#include "tools/launch/line_relay.hpp"

namespace tandem {
namespace {

constexpr std::string_view kFormat = "tandem launch 3";

volatile std::sig_atomic_t was_silent = 0;

// What waits for a reader of the output goes on, too: where the connection hangs, no reader comes.
void note_silence(int /*signal*/) {
  was_silent = 1;
  give_up_output();
}

timeval in(std::chrono::nanoseconds time) {
  const auto microseconds = std::chrono::ceil<std::chrono::microseconds>(time).count();
  return {.tv_sec = microseconds / 1'000'000, .tv_usec = microseconds % 1'000'000};
}

// Again and again once it is over, in case that a write began just before.
void expect_within(std::chrono::nanoseconds time) {
  const itimerval timer{.it_interval = in(std::chrono::milliseconds(500)), .it_value = in(time)};
  (void)::setitimer(ITIMER_REAL, &timer, nullptr);
}

void set_variables(const NodeOrder& order) {
  for (const std::string& variable : order.variables) {
    const std::size_t equals = variable.find('=');
    ::setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
}

std::string escaped(std::string_view text) {
  std::string line;
  for (const char c : text) {
    line += c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string(1, c);
  }
  return line;
}

std::string unescaped(std::string_view line) {
  std::string text;
  for (std::size_t at = 0; at < line.size(); ++at) {
    const bool is_escape = line[at] == '\\' && at + 1 < line.size();
    text += !is_escape ? line[at] : line[++at] == 'n' ? '\n' : line[at];
  }
  return text;
}

/// Every field, in the order of the lines.
template <class Order, class Visit>
void visit(Order& order, const Visit& field) {
  field(order.host);
  field(order.other_host);
  for (auto* number : {&order.places.first, &order.places.here, &order.places.world,
                       &order.places.host, &order.places.hosts, &order.places.restart,
                       &order.places.max_restarts, &order.places.first_world, &order.places.port}) {
    field(*number);
  }
  field(order.settings.grace);
  field(order.settings.bind_cores_to_rank);
  field(order.places.address);
  field(order.places.secret);
  field(order.directory);
  field(order.settings.log_dir);
  field(order.variables);
  field(order.settings.command);
}

struct Writer {
  std::string& text;
  void operator()(const std::string& value) const { text += escaped(value) + "\n"; }
  void operator()(int value) const { text += std::to_string(value) + "\n"; }
  void operator()(bool value) const { (*this)(value ? 1 : 0); }
  void operator()(std::chrono::milliseconds value) const {
    text += fmt::format("{}\n", value.count());
  }
  void operator()(const std::vector<std::string>& values) const {
    (*this)(static_cast<int>(values.size()));
    for (const std::string& value : values) {
      (*this)(value);
    }
  }
};

struct Reader {
  NodeLink& link;
  void operator()(std::string& value) const { value = unescaped(link.wait()); }
  template <std::integral Number>
  void operator()(Number& value) const {
    const std::string line = link.wait();
    (void)std::from_chars(line.data(), line.data() + line.size(), value);
  }
  void operator()(std::chrono::milliseconds& value) const {
    std::int64_t count = 0;
    (*this)(count);
    value = std::chrono::milliseconds(count);
  }
  void operator()(bool& value) const {
    int number = 0;
    (*this)(number);
    value = number != 0;
  }
  void operator()(std::vector<std::string>& values) const {
    int count = 0;
    (*this)(count);
    for (int index = 0; index < count; ++index) {
      (*this)(values.emplace_back());
    }
  }
};

}  // namespace

std::chrono::nanoseconds beat() {
  return seconds_setting("TANDEM_HEARTBEAT_S", std::chrono::seconds(5));
}

std::string encode(const NodeOrder& order) {
  std::string text = std::string(kFormat) + "\n";
  visit(order, Writer{text});
  return text;
}

NodeLink::NodeLink(int from, int to) : from_(from), to_(to), silence_(kSilence * beat()) {
  (void)::fcntl(from_, F_SETFL, ::fcntl(from_, F_GETFL) | O_NONBLOCK);
  struct sigaction action{};
  action.sa_handler = note_silence;  // without SA_RESTART: what waits is to go on
  (void)::sigaction(SIGALRM, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  expect_within(silence_);
}

bool NodeLink::is_lost() const noexcept { return at_end_ || was_silent != 0; }

std::optional<std::string> NodeLink::next() {
  for (;;) {
    const std::size_t end = held_.find('\n');
    if (end != std::string::npos) {
      std::string line = held_.substr(0, end);
      held_.erase(0, end + 1);
      if (line == "alive") {
        continue;
      }
      return line;
    }
    char buffer[4096];
    const ssize_t got = at_end_ ? 0 : ::read(from_, buffer, sizeof(buffer));
    if (got > 0) {
      held_.append(buffer, static_cast<std::size_t>(got));
      expect_within(silence_);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      at_end_ = true;
      give_up_output();
      return std::nullopt;
    } else if (errno == EAGAIN || is_lost()) {
      return std::nullopt;
    }
  }
}

std::string NodeLink::wait() {
  for (;;) {
    if (std::optional<std::string> line = next()) {
      return *std::move(line);
    }
    if (is_lost()) {
      throw failure(ExitCode::kPeer, "launch",
                    "the launch that this host's part belongs to is gone");
    }
    pollfd input{.fd = from_, .events = POLLIN, .revents = 0};
    (void)::poll(&input, 1, -1);
  }
}

NodeOrder NodeLink::wait_for_order() {
  if (const std::string first = wait(); first != kFormat) {
    throw user_error("launch", "this host's tandem is of another version; install the same on all");
  }
  NodeOrder order;
  visit(order, Reader{*this});
  set_variables(order);
  silence_ = kSilence * beat();
  expect_within(silence_);
  return order;
}

void NodeLink::tell_line(std::string_view text) const {
  write_line(to_, kMark + one_line(text) + "\n");
}

}  // namespace tandem
