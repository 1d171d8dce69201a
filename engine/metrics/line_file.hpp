// engine/metrics/line_file.hpp — files that are whole at any moment, appended line by line.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tandem {

/// Makes the directory and its parents. Throws user_error naming the path and the system's reason.
void make_output_dir(const std::string& path);

/// An append-only file of records. Each append is one write to the kernel; when only a part fits on
/// the disk the part is cut off again, so the file ends with a whole record.
class LineFile {
 public:
  /// Opens for appending. Unless `append`, what is there stays until the first record replaces it.
  /// A link or a pipe in the place of the file is refused; a file that has another name, too, is
  /// replaced by a copy, and keeps its lines under that one. Throws user_error naming the path.
  LineFile(std::string path, bool append);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  /// Throws Error naming the path and the system's reason.
  void append(std::string_view record);
  void append_line(std::string_view line);

  /// Closes the file, its records on the medium; no append() after it. Throws Error where they may
  /// be lost: the disk says so, or the path does not lead to the file any more.
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
