// runtime/trace_file.hpp — writes the records (runtime/trace.hpp) as a Chrome/Perfetto JSON file.
//
// A file shows one window of time on all threads. If a ring had no room for all records, the window
// begins after those that it dropped, with the first whole step if there are steps: an event that
// is not in the file did not happen within the window. An event that lasts beyond the window's ends
// is cut there.
// Each event is a line. A process is a rank. Several processes of a host share a file: all but one
// write their events to a part (write_part()), and that one merges the parts (write_chrome_json()).
// Thread rule: any thread; while others record, too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::trace {

struct StepMark {
  std::int64_t number = 0;
  std::int64_t at_ns = 0;
};

/// The window that this process can show.
struct Kept {
  std::int64_t since_ns = 0;  // all records from here on are there
  std::int64_t until_ns = 0;
  bool dropped = false;         // there were more, before `since_ns`
  std::vector<StepMark> steps;  // begun between the two, by time
};
[[nodiscard]] Kept kept();

struct Window {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};
/// Returns the window of all that is kept; if records were dropped, from the first whole step on.
[[nodiscard]] Window window_of(const Kept& kept);

/// One file of the ranks' events.
struct ChromeFile {
  Window window;
  std::string other_data = "{}";   // a JSON object in one line: of the run, for readers
  std::vector<std::string> parts;  // files of write_part() of other processes, for the same window
};

/// Writes this process's events in the window to a file for write_chrome_json() of another process.
/// Throws Error.
void write_part(const std::string& path, const Window& window);
/// Writes this process's events and those of the parts; gzip if `path` ends in ".gz". Throws Error,
/// naming the file; then the file is not there, or is the one from before.
void write_chrome_json(const std::string& path, const ChromeFile& file);
/// Does the same with all that is kept in this process.
void write_chrome_json(const std::string& path);
/// Returns the same as text (for tests and small traces).
[[nodiscard]] std::string chrome_json();

}  // namespace tandem::trace
