// examples/embed_runtime/request_log.hpp — the log's format: plain functions, which know nothing of
// actors.
//
// A line is `time_ms,route,status,bytes,latency_us`. Thread rule: any; each call touches only what
// it is given.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

struct Stats {
  std::uint64_t requests = 0;
  std::uint64_t errors = 0;  // status 500 and above
  std::uint64_t bytes = 0;
  std::uint64_t latency_us = 0;
  std::uint64_t max_latency_us = 0;

  void add(const Stats& other) {
    requests += other.requests;
    errors += other.errors;
    bytes += other.bytes;
    latency_us += other.latency_us;
    max_latency_us = std::max(max_latency_us, other.max_latency_us);
  }
};

/// Per route.
using Rows = std::map<std::string, Stats, std::less<>>;

/// The content of some whole lines.
struct Parsed {
  Rows rows;
  std::uint64_t lines = 0;
  std::uint64_t bad = 0;
  std::uint64_t first_bad_line = 0;  // counted from 0 within these lines
  std::string first_bad = {};        // its beginning
};
[[nodiscard]] Parsed parse_lines(std::string_view text);

[[nodiscard]] std::string table_of(const Rows& rows);

/// A made-up log, the same one each time.
class LogGenerator {
 public:
  explicit LogGenerator(std::uint64_t lines) : lines_(lines) {}
  [[nodiscard]] std::uint64_t lines_left() const { return lines_ - written_; }
  /// The next lines: `bytes` of them, or a little more.
  [[nodiscard]] std::string next(std::size_t bytes);

 private:
  std::uint64_t lines_;
  std::uint64_t written_ = 0;
  std::uint64_t state_ = 1;
};
