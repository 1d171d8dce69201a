// runtime/system/bounded_lines.hpp — the lines of a file that a stranger may have written, packed
// by gzip or not. Any thread; one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/system/owned_descriptor.hpp"

namespace tandem {

/// Opens a regular file for reading. It follows no link, which could lead to a file that only the
/// reading user may read, and does not wait for a FIFO's writer. On failure the descriptor is -1,
/// and errno says why: ELOOP for a link, EINVAL for anything else that is no regular file.
[[nodiscard]] OwnedDescriptor open_ordinary_file(const std::string& path) noexcept;

class BoundedLines {
 public:
  static constexpr std::size_t kLongest = std::size_t{1} << 20;
  static constexpr std::uint64_t kMost = std::uint64_t{4} << 30;

  /// Reads lines of at most `longest` bytes, and at most `most` unpacked bytes in all.
  explicit BoundedLines(OwnedDescriptor file, std::size_t longest = kLongest,
                        std::uint64_t most = kMost);
  ~BoundedLines();
  BoundedLines(const BoundedLines&) = delete;
  BoundedLines& operator=(const BoundedLines&) = delete;

  /// Returns the next line, without its newline; it may contain zero bytes, and is valid until the
  /// next call. A line that is too long is left out. Returns nullopt at the end.
  [[nodiscard]] std::optional<std::string_view> next();
  /// The number of lines that were left out.
  [[nodiscard]] std::uint64_t left_out() const noexcept { return left_out_; }
  /// True if `most` bytes were unpacked.
  [[nodiscard]] bool is_exhausted() const noexcept { return left_ == 0; }
  /// At the end: true if everything was read and the last line had its newline.
  [[nodiscard]] bool is_whole() const noexcept { return is_whole_; }

 private:
  struct File;
  /// Returns false if nothing more comes.
  bool fill();

  std::unique_ptr<File> file_;
  std::size_t longest_;
  std::uint64_t left_;  // bytes that may be unpacked
  std::vector<char> buffer_;
  std::string_view ahead_;  // the part of the buffer that is not taken
  std::string line_;
  std::uint64_t left_out_ = 0;
  bool is_whole_ = true;
};

}  // namespace tandem
