// engine/metrics/event_writer.hpp — scalar events in TensorBoard's file format, without protobuf.
// File: records of [length u64][masked CRC32C of the length][data][masked CRC32C of the data],
// little-endian; data is a serialized tensorflow.Event: wall_time (1, double), step (2, int64),
// file_version (3) or summary (5) holding values of tag (1, string) and simple_value (2, float).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/metrics/line_file.hpp"

namespace tandem {

/// CRC32C (Castagnoli) of `bytes`; `crc32c("123456789")` is 0xE3069283.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes) noexcept;

/// One framed record around `data`.
[[nodiscard]] std::string tfrecord(std::string_view data);

/// Whether this is the name of an event file.
[[nodiscard]] bool is_event_file(std::string_view name) noexcept;

using Scalar = std::pair<std::string_view, double>;  // tag, value

/// The serialized Event of one step's scalars.
[[nodiscard]] std::string scalar_event(double wall_time_s, std::int64_t step,
                                       const std::vector<Scalar>& scalars);

class EventWriter {
 public:
  /// Creates `directory`/events.out.tfevents.<seconds>.<host>.<pid>. Throws user_error when it
  /// cannot.
  explicit EventWriter(const std::string& directory);

  /// All scalars of one step in one record. Throws Error when the disk is full; the file stays
  /// whole.
  void write(std::int64_t step, const std::vector<Scalar>& scalars);

  /// Syncs and closes the file, as LineFile::close() does.
  void close() { file_.close(); }

  [[nodiscard]] const std::string& path() const noexcept { return file_.path(); }

 private:
  LineFile file_;
};

}  // namespace tandem
