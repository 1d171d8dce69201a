#include "trainer/program/resident_set.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "runtime/system/machine.hpp"

namespace tandem {

namespace {

/// The number of "Field:   123 kB", in bytes; 0 for another line.
std::int64_t kib_of(const std::string& line, std::string_view field) {
  if (!line.starts_with(field)) {
    return 0;
  }
  std::istringstream rest(line.substr(field.size()));
  std::int64_t kib = 0;
  rest >> kib;
  return kib * 1024;
}

/// Pages of arenas that this process can write to; those of peers are mapped to be read.
std::int64_t own_arena_bytes() {
  std::ifstream file("/proc/self/smaps");
  std::int64_t bytes = 0;
  bool own = false;
  for (std::string line; std::getline(file, line);) {
    const bool head = !line.empty() && line.find('-') < line.find(' ');
    if (head) {  // "7f00-7f01 rw-s 00000000 00:01 12  /memfd:tandem-arena (deleted)"
      own = line.find("memfd:tandem-arena") != std::string::npos &&
            line.find(" rw-s ") != std::string::npos;
    } else if (own) {
      bytes += kib_of(line, "Rss:");
    }
  }
  return bytes;
}

}  // namespace

ResidentSet resident_set() {
  std::int64_t shared_with_peers = 0;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    shared_with_peers += kib_of(line, "RssShmem:");
  }
  const auto peak = static_cast<std::int64_t>(machine::peak_rss_bytes());
  return {.host_peak = std::max<std::int64_t>(0, peak - shared_with_peers),
          .shared = shared_with_peers > 0 ? own_arena_bytes() : 0};
}

}  // namespace tandem
