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

/// A regular file, for reading: never through a link, which could lead to a file that only its
/// reader may read, and without waiting for a FIFO's writer. -1, and why in errno: ELOOP for a
/// link, EINVAL for what is no regular file.
[[nodiscard]] OwnedDescriptor open_ordinary_file(const std::string& path) noexcept;

class BoundedLines {
 public:
  static constexpr std::size_t kLongest = std::size_t{1} << 20;
  static constexpr std::uint64_t kMost = std::uint64_t{4} << 30;

  /// No line of more than `longest` bytes, and no more than `most` unpacked bytes in all.
  explicit BoundedLines(OwnedDescriptor file, std::size_t longest = kLongest,
                        std::uint64_t most = kMost);
  ~BoundedLines();
  BoundedLines(const BoundedLines&) = delete;
  BoundedLines& operator=(const BoundedLines&) = delete;

  /// The next line, without its newline, zero bytes and all; it is there until the next call. A
  /// longer one is left out. Nothing: the end.
  [[nodiscard]] std::optional<std::string_view> next();
  /// Lines that were left out.
  [[nodiscard]] std::uint64_t left_out() const noexcept { return left_out_; }
  /// Whether `most` bytes were unpacked.
  [[nodiscard]] bool is_exhausted() const noexcept { return left_ == 0; }
  /// Whether all was read and the last line had its newline; at the end.
  [[nodiscard]] bool is_whole() const noexcept { return is_whole_; }

 private:
  struct File;
  /// False: nothing more comes.
  bool fill();

  std::unique_ptr<File> file_;
  std::size_t longest_;
  std::uint64_t left_;  // bytes that may be unpacked
  std::vector<char> buffer_;
  std::string_view ahead_;  // of the buffer, what is not taken
  std::string line_;
  std::uint64_t left_out_ = 0;
  bool is_whole_ = true;
};

}  // namespace tandem
