#include "tools/launch/output.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"
#include "tools/launch/child_signals.hpp"
#include "tools/launch/launch_words.hpp"

namespace tandem {
namespace {

using std::chrono::milliseconds;

/// Bytes that a pipe or a terminal takes at once when poll() says that it takes any.
constexpr std::size_t kSurelyTaken = 256;

bool is_for_later(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

Output& Output::of_process() {
  static Output* const made = new Output();  // outlives what says something at exit
  return *made;
}

Output::Output() {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // a log that may not grow is said, as a full disk is
  struct stat files[2] = {};
  is_one_ = ::fstat(1, &files[0]) == 0 && ::fstat(2, &files[1]) == 0 &&
            files[0].st_dev == files[1].st_dev && files[0].st_ino == files[1].st_ino;
  open(ways_[0], 1);
  if (!is_one_) {
    open(ways_[1], 2);
  }
}

// O_NONBLOCK is of the open file, which a shell or another program may share: a pipe or a terminal
// is opened anew for it.
void Output::open(Way& way, int descriptor) const {
  struct stat file{};
  if (::fstat(descriptor, &file) != 0) {
    return;
  }
  way.descriptor = descriptor;
  if (S_ISSOCK(file.st_mode)) {
    way.kind = Kind::kSocket;
  } else if (!S_ISFIFO(file.st_mode) && !S_ISCHR(file.st_mode)) {
    way.kind = Kind::kFile;
  } else {
    way.own = OwnedDescriptor(::open(fmt::format("/proc/self/fd/{}", descriptor).c_str(),
                                     O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    way.kind = way.own.get() >= 0 ? Kind::kStream : errno == ENXIO ? Kind::kGone : Kind::kShared;
    way.descriptor = way.own.get() >= 0 ? way.own.get() : descriptor;
  }
  way.progress = Clock::now();
}

ssize_t Output::write_some(const Way& way, std::string_view text) {
  if (way.kind == Kind::kSocket) {
    return ::send(way.descriptor, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  if (way.kind == Kind::kShared) {
    pollfd room{.fd = way.descriptor, .events = POLLOUT, .revents = 0};
    if (::poll(&room, 1, 0) != 1) {
      errno = EAGAIN;
      return -1;
    }
    text = text.substr(0, kSurelyTaken);
  }
  return ::write(way.descriptor, text.data(), text.size());
}

void Output::flush(Way& way) {
  while (way.bytes() > 0) {
    const ssize_t written = write_some(way, std::string_view(way.held).substr(way.taken));
    if (written > 0) {
      way.taken += static_cast<std::size_t>(written);
      way.progress = Clock::now();
    } else if (errno == EINTR) {
      continue;
    } else if (is_for_later(errno)) {
      break;
    } else {
      // The reader is gone, which is no reason to stop the ranks; a disk that is full is said.
      const auto lines = std::ranges::count(std::string_view(way.held).substr(way.taken), '\n');
      way.error = errno == EPIPE ? 0 : errno;
      way.dropped += errno == EPIPE ? 0 : static_cast<std::uint64_t>(lines);
      way.kind = errno == EPIPE ? Kind::kGone : way.kind;
      way.taken = way.held.size();
    }
  }
  if (way.bytes() == 0 || way.taken >= kHoldsBack) {
    way.held.erase(0, std::exchange(way.taken, 0));
  }
}

void Output::put(int to, std::string_view line, std::size_t most) {
  Way& way = this->way(to);
  if (way.kind == Kind::kGone) {
    return;
  }
  const bool is_first = way.bytes() == 0;
  if (!is_first && way.bytes() + line.size() > most) {
    ++way.dropped;
    return;
  }
  way.held += line;
  if (is_first) {  // else the reader is behind, and the loop asks it
    way.progress = Clock::now();
    flush(way);
  }
}

void Output::write(int to, std::string_view line) { put(to, line, kMostHeld); }

void Output::write_news(int to, std::string_view line) { put(to, line, 2 * kMostHeld); }

void Output::flush() {
  for (Way& way : ways_) {
    flush(way);
  }
}

void Output::watch(std::vector<pollfd>& looked_at) const {
  for (const Way& way : ways_) {
    if (way.bytes() > 0) {
      looked_at.push_back({.fd = way.descriptor, .events = POLLOUT, .revents = 0});
    }
  }
}

bool Output::is_behind(const Way& way) const {
  return !hurries_ && way.bytes() > kHoldsBack && Clock::now() < way.progress + kPatience;
}

bool Output::takes_more() const {
  return std::ranges::none_of(ways_, [this](const Way& way) { return is_behind(way); });
}

Output::Clock::time_point Output::next_poll() const {
  auto next = Clock::time_point::max();
  for (const Way& way : ways_) {
    next = is_behind(way) ? std::min(next, way.progress + kPatience) : next;
  }
  return next;
}

void Output::give_up() noexcept {
  for (Way& way : ways_) {
    way.kind = Kind::kGone;
    way.taken = way.held.size();
  }
}

void Output::poll_for(milliseconds time) {
  std::vector<pollfd> looked_at;
  watch(looked_at);
  (void)::poll(looked_at.data(), looked_at.size(), static_cast<int>(time.count()));
  flush();
}

// Signals that are blocked interrupt no poll(): they are looked for between short ones.
void Output::wait_for_room() {
  while (!takes_more() && !ChildSignals::end_pending()) {
    poll_for(milliseconds(50));
  }
}

void Output::finish(milliseconds patience) {
  patience = is_brief_ ? std::min<milliseconds>(patience, kPatience) : patience;
  const auto is_awaited = [patience](const Way& way) {
    return way.bytes() > 0 && Clock::now() < way.progress + patience;
  };
  while (std::ranges::any_of(ways_, is_awaited) && !ChildSignals::end_pending()) {
    poll_for(milliseconds(50));
  }
  std::uint64_t dropped = 0;
  int error = 0;
  for (Way& way : ways_) {
    dropped +=
        std::exchange(way.dropped, 0) + static_cast<std::uint64_t>(std::ranges::count(
                                            std::string_view(way.held).substr(way.taken), '\n'));
    error = way.error != 0 ? way.error : error;
  }
  if (dropped > 0) {
    const std::string why = error != 0 ? std::strerror(error) : "their reader did not take them";
    const std::string line = fmt::format(
        "launch: {} lines of output were dropped: {}; --log_dir keeps each rank's\n", dropped, why);
    Way& errors = way(2);
    // Where errors have the same stuck reader it can be said to none.
    if (errors.bytes() == 0 && errors.kind != Kind::kGone) {
      (void)write_some(errors, line);
    }
  }
}

RankLog::RankLog(std::string path, bool goes_on) : path_(std::move(path)) {
  const auto refuse = [this](std::string_view why) {
    throw user_error("launch", "cannot write {}: {}; give another --log_dir", one_line(path_), why);
  };
  // Without O_TRUNC, and without waiting for a FIFO's reader: it is looked at first.
  file_ = OwnedDescriptor(::open(
      path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
  if (file_.get() < 0) {
    refuse(errno == ELOOP   ? "it is a link"
           : errno == ENXIO ? "it is no ordinary file"
                            : std::strerror(errno));
  }
  struct stat file{};
  if (::fstat(file_.get(), &file) != 0 || !S_ISREG(file.st_mode)) {
    refuse("it is no ordinary file");
  }
  if (file.st_nlink > 1) {
    refuse("it has another name, too");
  }
  if (!goes_on && ::ftruncate(file_.get(), 0) != 0) {
    refuse(std::strerror(errno));
  }
}

void RankLog::write(std::string_view line) {
  while (file_.get() >= 0 && !line.empty()) {
    const ssize_t written = ::write(file_.get(), line.data(), line.size());
    if (written > 0) {
      line.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      error_ = written == 0 ? ENOSPC : errno;
      if (++lost_ == 1) {
        say("launch: {} lacks lines from here on: {}; the run goes on", path_,
            std::strerror(error_));
      }
      return;
    }
  }
}

RankLog::~RankLog() {
  if (file_.get() >= 0 && lost_ > 0) {
    say("launch: {} lacks {} lines: {}", path_, lost_, std::strerror(error_));
  }
}

}  // namespace tandem
