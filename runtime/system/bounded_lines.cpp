#include "runtime/system/bounded_lines.hpp"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <zlib.h>

#include "runtime/system/reach.hpp"

namespace tandem {

OwnedDescriptor open_ordinary_file(const std::string& path) noexcept {
  OwnedDescriptor file(reach::open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat about{};
  if (file.get() >= 0 && (::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode))) {
    file = OwnedDescriptor();
    errno = EINVAL;
  }
  return file;
}

struct BoundedLines::File {
  gzFile stream = nullptr;
  ~File() {
    if (stream != nullptr) {
      (void)gzclose(stream);
    }
  }
};

BoundedLines::BoundedLines(OwnedDescriptor file, std::size_t longest, std::uint64_t most)
    : file_(std::make_unique<File>()), longest_(longest), left_(most), buffer_(1 << 16) {
  file_->stream = file.get() < 0 ? nullptr : gzdopen(file.get(), "rb");
  if (file_->stream != nullptr) {
    (void)file.release();  // the stream closes it
  }
}

BoundedLines::~BoundedLines() = default;

bool BoundedLines::fill() {
  const std::uint64_t most = std::min<std::uint64_t>(buffer_.size(), left_);
  const int got = file_->stream == nullptr || most == 0
                      ? -1
                      : gzread(file_->stream, buffer_.data(), static_cast<unsigned>(most));
  if (got > 0) {
    left_ -= static_cast<std::uint64_t>(got);
    ahead_ = {buffer_.data(), static_cast<std::size_t>(got)};
    return true;
  }
  int error = Z_OK;
  if (file_->stream != nullptr) {
    (void)gzerror(file_->stream, &error);
  }
  is_whole_ = is_whole_ && got == 0 && error == Z_OK;
  return false;
}

std::optional<std::string_view> BoundedLines::next() {
  line_.clear();
  bool is_longer = false;
  while (!ahead_.empty() || fill()) {
    const std::size_t end = ahead_.find('\n');
    const std::string_view part = ahead_.substr(0, end);
    ahead_.remove_prefix(end == std::string_view::npos ? ahead_.size() : end + 1);
    is_longer = is_longer || line_.size() + part.size() > longest_;
    if (is_longer) {
      line_.clear();
    } else {
      line_ += part;
    }
    if (end == std::string_view::npos) {
      continue;
    }
    if (!is_longer) {
      return line_;
    }
    ++left_out_;
    is_longer = false;
  }
  left_out_ += is_longer ? 1 : 0;
  is_whole_ = is_whole_ && !is_longer && line_.empty();
  if (line_.empty()) {
    return std::nullopt;
  }
  return line_;  // the last one, which has no newline
}

}  // namespace tandem
