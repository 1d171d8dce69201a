// engine/metrics/line_file.hpp — files to which whole records are appended, and which never end
// with a part of one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tandem {

/// Makes the directory and its parents. Throws user_error naming the path and the system's reason.
void make_output_dir(const std::string& path);

/// An append-only file of records. Each append is one write to the kernel; if the disk takes only a
/// part of it, that part is cut off again.
class LineFile {
 public:
  /// Opens for appending. Without `append`, the old content stays until the first record replaces
  /// it. A link or a pipe with the file's name is refused. A file with further hard links is
  /// replaced by a copy; the links keep the old file. Throws user_error naming the path.
  LineFile(std::string path, bool append);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  /// Throws Error naming the path and the system's reason.
  void append(std::string_view record);
  void append_line(std::string_view line);

  /// Syncs and closes the file; no append() may follow. Throws Error if records may be lost: the
  /// sync fails, or the path no longer leads to the file.
  void close();

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  void open();

  std::string path_;
  std::string line_;  // reused
  int fd_ = -1;
  bool replaces_;  // by the next record
};

}  // namespace tandem
