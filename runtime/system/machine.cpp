#include "runtime/system/machine.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>

#include <hwloc.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

namespace tandem::machine {

namespace cgroup {

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<std::uint64_t> leading_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  return parsed.ec == std::errc() ? std::optional(value) : std::nullopt;
}

std::uint64_t stat_field(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.size() > name.size() && line.starts_with(name) && line[name.size()] == ' ') {
      return leading_number(std::string_view(line).substr(name.size() + 1)).value_or(0);
    }
  }
  return 0;
}

std::vector<std::string> folders(std::string_view controller) {
  std::vector<std::string> found;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string_view controllers =
        std::string_view(line).substr(first + 1, second - first - 1);
    const bool ours = controller.empty() ? controllers.empty()
                                         : controllers.find(controller) != std::string_view::npos;
    if (!ours) {
      continue;
    }
    const std::string root =
        controller.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + std::string(controller);
    for (std::string path = line.substr(second + 1);;) {
      found.push_back(root + (path == "/" ? "" : path));
      const std::size_t slash = path.rfind('/');
      if (slash == std::string::npos || path == "/") {
        break;
      }
      path = slash == 0 ? "/" : path.substr(0, slash);
    }
  }
  return found;
}

}  // namespace cgroup

namespace {

using cgroup::leading_number;
using cgroup::read_text;
using cgroup::stat_field;

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

// "Name:   123 kB" in a /proc file, in bytes; 0 if it is not there.
std::uint64_t proc_kib_field(const std::string& path, std::string_view field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field)) {
      const std::size_t digits = line.find_first_of("0123456789");
      if (digits != std::string::npos) {
        return leading_number(std::string_view(line).substr(digits)).value_or(0) * 1024;
      }
    }
  }
  return 0;
}

// CPUs' worth of time per period, or none.
std::optional<double> cgroup_cpu_quota() {
  std::optional<double> quota;
  const auto take = [&quota](double value) { quota = std::min(quota.value_or(value), value); };
  for (const std::string& folder : cgroup::folders("")) {
    const std::string text = read_text(folder + "/cpu.max");  // "<quota|max> <period>"
    const std::size_t space = text.find(' ');
    const auto limit = leading_number(text);
    if (limit && space != std::string::npos) {
      const auto period = leading_number(std::string_view(text).substr(space + 1));
      if (period && *period > 0) {
        take(static_cast<double>(*limit) / static_cast<double>(*period));
      }
    }
  }
  for (const std::string& folder : cgroup::folders("cpu")) {
    const auto limit = leading_number(read_text(folder + "/cpu.cfs_quota_us"));  // -1: none
    const auto period = leading_number(read_text(folder + "/cpu.cfs_period_us"));
    if (limit && period && *period > 0) {
      take(static_cast<double>(*limit) / static_cast<double>(*period));
    }
  }
  return quota;
}

std::uint64_t cgroup_memory_left() {
  std::uint64_t left = kNoLimit;
  // Pages of files that no process uses are counted as used, and given up as soon as someone wants
  // memory.
  const auto take = [&left](const std::string& limit_file, const std::string& usage_file,
                            std::uint64_t reclaimable) {
    const auto limit = leading_number(read_text(limit_file));
    const auto usage = leading_number(read_text(usage_file));
    if (limit && usage) {
      const std::uint64_t used = *usage - std::min(*usage, reclaimable);
      left = std::min(left, *limit > used ? *limit - used : 0);
    }
  };
  for (const std::string& folder : cgroup::folders("")) {
    take(folder + "/memory.max", folder + "/memory.current",
         stat_field(folder + "/memory.stat", "inactive_file"));
  }
  for (const std::string& folder : cgroup::folders("memory")) {
    take(folder + "/memory.limit_in_bytes", folder + "/memory.usage_in_bytes",
         stat_field(folder + "/memory.stat", "total_inactive_file"));
  }
  return left;
}

struct Topology {
  Topology() {
    ok = hwloc_topology_init(&handle) == 0;
    if (ok && hwloc_topology_load(handle) != 0) {
      hwloc_topology_destroy(handle);
      ok = false;
    }
  }
  ~Topology() {
    if (ok) {
      hwloc_topology_destroy(handle);
    }
  }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;
  hwloc_topology_t handle{};
  bool ok = false;
};

}  // namespace

std::vector<int> affinity() {
  // Larger than CPU_SETSIZE on purpose: the kernel refuses a mask that is smaller than its own.
  constexpr int kCpusMax = 8192;
  const auto set = std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)>(
      CPU_ALLOC(kCpusMax), [](cpu_set_t* mask) { CPU_FREE(mask); });
  const std::size_t bytes = CPU_ALLOC_SIZE(kCpusMax);
  CPU_ZERO_S(bytes, set.get());
  std::vector<int> cpus;
  if (sched_getaffinity(0, bytes, set.get()) == 0) {
    for (int cpu = 0; cpu < kCpusMax; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes, set.get())) {
        cpus.push_back(cpu);
      }
    }
  }
  return cpus;
}

int usable_cpus() {
  int count = static_cast<int>(affinity().size());
  if (const auto quota = cgroup_cpu_quota()) {
    const int whole = static_cast<int>(*quota);
    count = std::min(count, whole + (*quota > whole ? 1 : 0));
  }
  return std::max(count, 1);
}

std::uint64_t cache_bytes() {
  long largest = 0;
  for (const int level : {_SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL4_CACHE_SIZE}) {
    largest = std::max(largest, sysconf(level));
  }
  return static_cast<std::uint64_t>(largest);
}

std::uint64_t memory_available_bytes() {
  return std::min(proc_kib_field("/proc/meminfo", "MemAvailable:"), cgroup_memory_left());
}

std::uint64_t memory_total_bytes() { return proc_kib_field("/proc/meminfo", "MemTotal:"); }
std::uint64_t rss_bytes() { return proc_kib_field("/proc/self/status", "VmRSS:"); }
std::uint64_t peak_rss_bytes() { return proc_kib_field("/proc/self/status", "VmHWM:"); }

std::uint64_t memlock_limit_bytes() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
    return 0;
  }
  return limit.rlim_cur == RLIM_INFINITY ? kNoLimit : limit.rlim_cur;
}

std::vector<Core> cores() {
  const Topology topology;
  const std::vector<int> allowed = affinity();
  std::vector<Core> result;
  if (!topology.ok) {
    return result;
  }
  const int count = hwloc_get_nbobjs_by_type(topology.handle, HWLOC_OBJ_CORE);
  for (int i = 0; i < count; ++i) {
    const hwloc_obj_t core =
        hwloc_get_obj_by_type(topology.handle, HWLOC_OBJ_CORE, static_cast<unsigned>(i));
    Core entry{core->nodeset != nullptr ? std::max(hwloc_bitmap_first(core->nodeset), 0) : 0, {}};
    for (int cpu = hwloc_bitmap_first(core->cpuset); cpu >= 0;
         cpu = hwloc_bitmap_next(core->cpuset, cpu)) {
      if (std::binary_search(allowed.begin(), allowed.end(), cpu)) {
        entry.cpus.push_back(cpu);
      }
    }
    if (!entry.cpus.empty()) {
      result.push_back(std::move(entry));
    }
  }
  return result;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return {};
}

}  // namespace tandem::machine
