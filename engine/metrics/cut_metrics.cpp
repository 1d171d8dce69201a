#include "engine/metrics/cut_metrics.hpp"

#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "actors/storage/file.hpp"
#include "engine/metrics/event_writer.hpp"

namespace tandem {

namespace {

constexpr std::size_t kFrameBytes = 12;  // length and its checksum
constexpr std::size_t kCheckBytes = 4;   // behind the data

/// The number behind "step": of a line of ours, which has it among its first members.
std::optional<std::int64_t> step_of(std::string_view line) {
  constexpr std::string_view kKey = "\"step\":";
  std::size_t at = line.find(kKey);
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  at = line.find_first_not_of(' ', at + kKey.size());
  std::int64_t step = 0;
  const auto read = std::from_chars(line.data() + at, line.data() + line.size(), step);
  return read.ec == std::errc() ? std::optional(step) : std::nullopt;
}

/// Field 2 of a serialized Event, behind its wall time; 0 where there is none.
std::int64_t step_of_event(std::string_view event) {
  constexpr std::size_t kWallTimeBytes = 9;
  constexpr char kStepTag = 2 << 3;
  if (event.size() <= kWallTimeBytes || event[kWallTimeBytes] != kStepTag) {
    return 0;
  }
  std::uint64_t step = 0;
  unsigned shift = 0;
  for (std::size_t at = kWallTimeBytes + 1; at < event.size() && shift < 64; ++at, shift += 7) {
    const auto byte = static_cast<unsigned char>(event[at]);
    step |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
    if ((byte & 0x80U) == 0) {
      break;
    }
  }
  return static_cast<std::int64_t>(step);
}

/// The whole lines whose step, 0 where a line has none, is at most `last_step`.
template <class StepOf>
std::string lines_until(std::string_view lines, std::int64_t last_step, StepOf step_of_line) {
  std::string kept;
  for (std::size_t begin = 0; begin < lines.size();) {
    const std::size_t end = lines.find('\n', begin);
    if (end == std::string_view::npos) {
      break;
    }
    const std::string_view line = lines.substr(begin, end + 1 - begin);
    if (step_of_line(line).value_or(0) <= last_step) {
      kept += line;
    }
    begin = end + 1;
  }
  return kept;
}

/// The number that a CSV row begins with.
std::optional<std::int64_t> first_column_of(std::string_view row) {
  std::int64_t step = 0;
  const auto read = std::from_chars(row.data(), row.data() + row.size(), step);
  return read.ec == std::errc() ? std::optional(step) : std::nullopt;
}

}  // namespace

bool is_monitor_csv(std::string_view name) noexcept {
  return name.starts_with("Train_Samples_") && name.ends_with(".csv");
}

std::string metrics_until(std::string_view lines, std::int64_t last_step) {
  return lines_until(lines, last_step, &step_of);
}

std::string rows_until(std::string_view rows, std::int64_t last_step) {
  return lines_until(rows, last_step, &first_column_of);
}

std::string events_until(std::string_view records, std::int64_t last_step) {
  std::string kept;
  for (std::size_t begin = 0; begin + kFrameBytes <= records.size();) {
    std::uint64_t length = 0;
    std::memcpy(&length, records.data() + begin, sizeof(length));
    const std::size_t left = records.size() - begin - kFrameBytes;
    if (left < kCheckBytes || length > left - kCheckBytes) {
      break;
    }
    const std::size_t whole = kFrameBytes + length + kCheckBytes;
    if (step_of_event(records.substr(begin + kFrameBytes, length)) <= last_step) {
      kept += records.substr(begin, whole);
    }
    begin += whole;
  }
  return kept;
}

void cut_metrics(const std::string& folder, std::int64_t last_step) {
  namespace fs = std::filesystem;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename();
    const auto cut = is_event_file(name)       ? &events_until
                     : name == "metrics.jsonl" ? &metrics_until
                     : is_monitor_csv(name)    ? &rows_until
                                               : nullptr;
    if (cut == nullptr) {
      continue;
    }
    const std::string text = read_file(entry.path(), "resume", UINT64_MAX);
    const std::string kept = cut(text, last_step);
    if (kept != text) {
      write_file(entry.path(), "resume", kept);
    }
  }
}

}  // namespace tandem
