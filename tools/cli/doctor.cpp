// `tandem doctor`: what this machine offers, which versions are at work, and what would be slow
// here and why.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/statvfs.h>
#include <torch/version.h>
#include <unistd.h>

#include "actors/kernels/simd_target.hpp"
#include "engine/device/core_plan.hpp"
#include "engine/tensors/device_choice.hpp"
#include "engine/types/version.hpp"
#include "runtime/device/gpu_probe.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/system/limits.hpp"
#include "runtime/system/machine.hpp"
#include "runtime/system/topology.hpp"
#include "runtime/util/json_writer.hpp"
#include "tools/cli/commands.hpp"
#include "trainer/program/program.hpp"

namespace tandem {
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kGiB = 1 << 30;

std::string size_text(double bytes) {
  return bytes < kGiB ? fmt::format("{:.1f} MiB", bytes / kMiB)
                      : fmt::format("{:.1f} GiB", bytes / kGiB);
}

std::string first_line_of(const char* path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

struct Findings {
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<std::string> slow;

  template <class... Args>
  void fact(std::string_view name, fmt::format_string<Args...> text, Args&&... args) {
    facts.emplace_back(name, fmt::format(text, std::forward<Args>(args)...));
  }
};

void look_at_processors(Findings& found) {
  const int usable = machine::usable_cpus();
  const std::vector<int> affinity = machine::affinity();
  const auto online = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  found.fact("processor", "{}, kernels for {}", machine::cpu_name(), simd_target());
  found.fact("cpus", "{} usable of {} (affinity {})", usable, online, ranges_text(affinity));
  struct Node {
    int cores = 0;
    std::vector<int> cpus;
  };
  std::map<int, Node> nodes;
  for (const machine::Core& core : machine::cores()) {
    Node& node = nodes[core.numa_node];
    ++node.cores;
    node.cpus.insert(node.cpus.end(), core.cpus.begin(), core.cpus.end());
  }
  for (auto& [number, node] : nodes) {
    std::ranges::sort(node.cpus);
    found.fact("numa node", "{}: {} cores, cpus {}", number, node.cores, ranges_text(node.cpus));
  }
  if (usable < online) {
    found.slow.push_back(fmt::format(
        "only {} of {} CPUs may be used (affinity mask or cgroup quota)", usable, online));
  }
  if (nodes.size() > 1) {
    found.slow.emplace_back(
        "memory of the other NUMA node is slower: bind each rank to one node, or use --pin_cores");
  }
  if (!has_simd()) {
    found.slow.push_back(
        "the CPU optimizer has no vectors here: its kernels are built for AVX2 and AVX-512");
  }
}

/// The means of a rank that is alone here.
void look_at_cores(Findings& found, bool has_gpu) {
  const CpuTopology topology = topology_of_machine(true);
  found.fact("a rank", "{}", CorePlan::of(topology, {}).text());
  if (!has_gpu) {
    return;
  }
  found.fact("with a gpu", "{}", CorePlan::of(topology, {.accelerator = true}).text());
  for (std::size_t gpu = 0; gpu < topology.accelerator_nodes.size(); ++gpu) {
    found.fact("gpu near", "{}: NUMA node {}", gpu, topology.accelerator_nodes[gpu]);
  }
}

void look_at_memory(Findings& found, bool has_gpu) {
  constexpr double kLittle = 4 * kGiB;
  const auto available = static_cast<double>(machine::memory_available_bytes());
  found.fact("memory", "{} available of {}", size_text(available),
             size_text(static_cast<double>(machine::memory_total_bytes())));
  const std::uint64_t limit = machine::memlock_limit_bytes();
  found.fact("memlock", "{}",
             limit == UINT64_MAX ? "no limit" : size_text(static_cast<double>(limit)));
  const std::uint64_t stack = limits::stack_bytes();
  found.fact("stack", "{} (ulimit -s)",
             stack == UINT64_MAX ? "no limit" : size_text(static_cast<double>(stack)));
  found.fact("threads", "{}", limits::threads_text());
  struct statvfs shm{};
  if (::statvfs("/dev/shm", &shm) == 0) {
    found.fact("/dev/shm", "{} free",
               size_text(static_cast<double>(shm.f_bavail) * static_cast<double>(shm.f_frsize)));
  }
  if (available < kLittle) {
    found.slow.push_back(fmt::format("{} of memory is little: AdamW keeps 16 bytes per parameter",
                                     size_text(available)));
  }
  if (has_gpu && limit != UINT64_MAX) {
    found.slow.push_back(
        fmt::format("at most {} can be pinned for copies to the GPU: raise `ulimit -l`",
                    size_text(static_cast<double>(limit))));
  }
  if (first_line_of("/sys/kernel/mm/transparent_hugepage/enabled").find("[never]") !=
      std::string::npos) {
    found.slow.emplace_back(
        "huge pages are off (transparent_hugepage is `never`): more TLB misses");
  }
}

bool look_at_gpus(Findings& found) {
  const std::vector<GpuInfo> devices = gpus();
  for (const GpuInfo& gpu : devices) {
    found.fact("gpu", "{}, {} free of {}, compute capability {}.{}", gpu.name,
               size_text(static_cast<double>(gpu.free_bytes)),
               size_text(static_cast<double>(gpu.memory_bytes)), gpu.compute_major,
               gpu.compute_minor);
  }
  if (devices.empty()) {
    found.fact("gpu", "none found{}", built_with_cuda() ? "" : " (built without CUDA)");
    found.slow.emplace_back("no GPU: the model computes on the CPU, beside the optimizer");
  }
  const std::string why = why_no_cuda(DeviceFacts::of_machine());
  found.fact("--device", "{}", why.empty() ? "auto is cuda" : "auto is cpu: " + why);
  if (!devices.empty() && !why.empty()) {
    found.slow.push_back("there is a GPU that cannot be used: " + why);
  }
  return !devices.empty();
}

void look_at_io(Findings& found) {
  const FileIo::Choice choice = FileIo::choose();
  found.fact("io_uring", "{}{}", choice.uring ? "yes, " : "no: ", choice.why);
  if (!choice.uring) {
    found.slow.emplace_back("without io_uring, files are read and written by a pool of threads");
  }
}

void look_at_environment(Findings& found) {
  const char* threads = std::getenv("OMP_NUM_THREADS");
  if (threads != nullptr && std::string_view(threads) == "1") {
    found.fact("threads", "OMP_NUM_THREADS=1 is set; the optimizer pool has a count of its own");
  }
}

/// {"facts": [{"name": ..., "text": ...}], "slow": [...]}
std::string json_of(const Findings& found) {
  JsonWriter json(2);
  json.begin_object().key("facts").begin_array();
  for (const auto& [name, text] : found.facts) {
    json.begin_object().field("name", name).field("text", text).end_object();
  }
  json.end_array().key("slow").begin_array();
  for (const std::string& line : found.slow) {
    json.value(line);
  }
  json.end_array().end_object();
  return json.take();
}

}  // namespace

int run_doctor(int argc, char** argv) {
  CLI::App app("What this machine offers, and what would be slow on it", "tandem doctor");
  bool json = false;
  app.add_flag("--json", json, "The same as one JSON object: facts, and what would be slow");
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  Findings found;
  found.fact("tandem", "{}, compiled by {}, LibTorch {}, {} CUDA parts", version(), __VERSION__,
             TORCH_VERSION, built_with_cuda() ? "with" : "without");
  look_at_processors(found);
  const bool has_gpu = look_at_gpus(found);
  look_at_cores(found, has_gpu);
  look_at_memory(found, has_gpu);
  look_at_io(found);
  look_at_environment(found);
  if (json) {
    fmt::print("{}\n", json_of(found));
    return 0;
  }
  for (const auto& [name, text] : found.facts) {
    fmt::print("{:<10} {}\n", name, text);
  }
  fmt::print("\n");
  if (found.slow.empty()) {
    fmt::print("Nothing here would be slow.\n");
  } else {
    fmt::print("What would be slow, and why:\n- {}\n", fmt::join(found.slow, "\n- "));
  }
  return 0;
}

}  // namespace tandem
