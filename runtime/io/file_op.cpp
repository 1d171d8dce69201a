// The part of file operations that is the same for every back end.
#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>

#include "runtime/event_loop.hpp"
#include "runtime/io/file_backend.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {
namespace {

// A call that the kernel has no means for at the moment is repeated after a rest, for about a
// second in all.
constexpr auto kRest = std::chrono::milliseconds(1);
constexpr int kRefusalsMax = 1000;

constexpr std::uint64_t kOffsetMax = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

}  // namespace

Name FileRequest::verb() const noexcept {
  switch (kind) {
    case Kind::kOpen:
      return "open";
    case Kind::kRead:
      return "read";
    case Kind::kWrite:
      return "write";
    case Kind::kFsync:
    case Kind::kFsyncFolder:
      return "fsync";
    case Kind::kClose:
      return "close";
    case Kind::kRename:
      return "rename";
    case Kind::kExchange:
      return "exchange";
    case Kind::kRemove:
    case Kind::kRemoveTree:
      return "remove";
    case Kind::kSize:
      return "ask the size of";
    case Kind::kReserve:
      return "reserve the space of";
    case Kind::kMakeFolder:
      return "make the folder";
    case Kind::kListFolder:
      return "list the folder";
    case Kind::kRemoveFolder:
      return "remove the folder";
    case Kind::kFreeBytes:
      return "ask what is free at";
  }
  return "use";
}

FileOp::FileOp(FileBackend& backend, EventLoop& loop, FileRequest what, std::size_t piece_bytes_max,
               StopToken stop)
    : TimerOp(&FileOp::arrive),
      request(std::move(what)),
      backend_(backend),
      loop_(loop),
      piece_bytes_max_(piece_bytes_max),
      call_bytes_max_(kNoLimit),
      stop_(stop) {}

std::size_t FileOp::bytes() const noexcept {
  return std::min({request.bytes - done_, piece_bytes_max_, call_bytes_max_});
}

void FileOp::check_loop() const noexcept {
  TANDEM_CHECK_FOR(loop_.name().c_str(), EventLoop::current_or_null() == &loop_,
                   "a FileIo is awaited on the loop that it was made for: send that loop a "
                   "message");
}

void FileOp::call_again() noexcept {
  call_bytes_max_ = kNoLimit;
  if (is_transfer() && offset() > kOffsetMax) {
    outcome = -EINVAL;  // some offsets mean something else to a ring
    loop_.post(*this);
    return;
  }
  backend_.submit(*this);
}

void FileOp::arrive(Op& base) noexcept {
  auto& op = static_cast<FileOp&>(base);
  if (op.resting_) {
    op.resting_ = false;
    if (!op.stop_requested()) {
      op.call_again();
      return;
    }
    op.stopped_ = true;
    op.ended_ = true;
  } else if (op.outcome < 0) {
    op.take_error(static_cast<int>(-op.outcome));
  } else {
    op.refusals_ = 0;
    op.take_moved();
  }
  if (op.ended_) {
    op.on_stop_.unlink();
    if (op.error_number_ == 0) {
      op.request.file.reset();  // else it has the name for the message
    }
    detail::ResumeOp::resume(op.resume_);
  } else if (!op.resting_) {
    op.call_again();
  }
}

void FileOp::take_moved() noexcept {
  if (!is_transfer()) {
    result_ = static_cast<std::uint64_t>(outcome);
    ended_ = true;
    return;
  }
  const auto moved = static_cast<std::size_t>(outcome);
  done_ += planted(Bug::kShortReadTakenAsWhole) && request.kind == Kind::kRead && moved > 0
               ? bytes()
               : moved;
  result_ = done_;
  // Past the page cache only a file's last block is moved in part.
  const bool last_block = request.direct && moved % kDirectAlignment != 0;
  if (done_ == request.bytes || moved == 0 || last_block) {
    if (request.kind == Kind::kWrite && done_ < request.bytes) {
      error_number_ = EIO;  // a write that makes no progress and says no error
    }
    ended_ = true;
  } else if (stop_requested()) {
    stopped_ = true;
    ended_ = true;
  }
}

void FileOp::take_error(int number) noexcept {
  if (number == EINTR && request.kind == Kind::kClose) {
    ended_ = true;  // not again: Linux has closed it then
    return;
  }
  if (stop_requested() && (number == ECANCELED || number == EINTR || number == EAGAIN)) {
    stopped_ = true;
    ended_ = true;
    return;
  }
  if (number == EINTR) {
    return;
  }
  // io_uring ends an operation with ECANCELED if signals keep it from starting a worker thread.
  if ((number == EAGAIN || number == ECANCELED) && ++refusals_ < kRefusalsMax) {
    resting_ = true;
    loop_.arm(*this, loop_.now() + kRest);
    return;
  }
  error_number_ = planted(Bug::kNoSpaceIgnored) && number == ENOSPC ? 0 : number;
  ended_ = true;
}

void FileOp::cancel() noexcept {
  if (!resting_) {
    backend_.cancel(*this);
  } else if (armed()) {
    loop_.disarm(*this);
    loop_.post(*this);
  }
}

void FileOp::throw_if_failed() const {
  if (stopped_) {
    throw Stopped();
  }
  if (error_number_ == 0) {
    return;
  }
  std::string what =
      fmt::format("[file] cannot {} {}", request.verb().c_str(),
                  request.path_of_file != nullptr ? *request.path_of_file : request.path);
  if (!request.new_path.empty()) {
    what += (request.kind == Kind::kRename ? " to " : " with ") + request.new_path;
  }
  if (request.kind == Kind::kReserve) {
    what += fmt::format(" ({} bytes)", request.bytes);
  }
  if (is_transfer()) {
    what += fmt::format(" at byte {} ({} bytes)", request.offset, request.bytes);
  }
  what += ": " + (error_number_ == ELOOP
                      ? "a link is in its place or on the way to it, and is not followed here"
                      : std::generic_category().message(error_number_));
  throw FileError(what, error_number_);
}

}  // namespace tandem
