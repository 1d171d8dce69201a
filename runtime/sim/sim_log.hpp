// runtime/sim/sim_log.hpp — records the events of a simulated world: a hash over all of them, and
// the last ones as text.
//
// Two executions are the same if their hashes are.
// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tandem {

class SimLog {
 public:
  struct Record {
    std::int64_t time_ns;
    const char* what;  // lives for ever
    std::uint32_t rank;
    std::uint64_t a;
    std::uint64_t b;
  };

  void add(const Record& record);
  [[nodiscard]] std::uint64_t hash() const noexcept { return hash_; }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// The last `most` records, one line each, oldest first.
  [[nodiscard]] std::string tail(std::size_t most) const;

 private:
  static constexpr std::size_t kKept = 4096;
  void mix(std::uint64_t value) noexcept;

  std::uint64_t hash_ = 0xcbf29ce484222325;
  std::uint64_t count_ = 0;
  std::vector<Record> ring_;
};

}  // namespace tandem
