// runtime/system/machine.hpp — facts about the machine that plans and refusals are based on. Any
// thread; read anew at each call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::machine {

/// CPUs this process may use at once: its affinity mask, cut by the cgroup's CPU quota (rounded
/// up). At least 1.
[[nodiscard]] int usable_cpus();
/// The numbers of the CPUs in the affinity mask, ascending.
[[nodiscard]] std::vector<int> affinity();

/// The size of the largest cache that the system reports; 0 if it reports none.
[[nodiscard]] std::uint64_t cache_bytes();

/// Bytes that can still be allocated: MemAvailable, cut by what is left below the cgroup's limit.
[[nodiscard]] std::uint64_t memory_available_bytes();
[[nodiscard]] std::uint64_t memory_total_bytes();
/// Resident set of this process, now and at its highest.
[[nodiscard]] std::uint64_t rss_bytes();
[[nodiscard]] std::uint64_t peak_rss_bytes();
/// Bytes that may be locked (mlock, pinned); UINT64_MAX: no limit.
[[nodiscard]] std::uint64_t memlock_limit_bytes();

struct Core {
  int numa_node;
  std::vector<int> cpus;  // hardware threads of this core that we may use
};
/// Cores and NUMA nodes as hwloc sees them, in its order; only what the affinity mask allows.
[[nodiscard]] std::vector<Core> cores();
/// The CPU's name, e.g. "AMD EPYC 7B13"; empty if unknown.
[[nodiscard]] std::string cpu_name();

/// The files of this process's control groups, versions 1 and 2.
namespace cgroup {

/// This process's folder in the tree of `controller` ("" is version 2), and those above it,
/// innermost first.
[[nodiscard]] std::vector<std::string> folders(std::string_view controller);
/// The whole text of a file; empty if there is none.
[[nodiscard]] std::string read_text(const std::string& path);
/// The number at the start of `text` ("max" and nonsense: none).
[[nodiscard]] std::optional<std::uint64_t> leading_number(std::string_view text);
/// The number of the line "name 123" of a file; 0 if there is no line of that name.
[[nodiscard]] std::uint64_t stat_field(const std::string& path, std::string_view name);

}  // namespace cgroup

}  // namespace tandem::machine
