#include "engine/placement/bandwidths.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

#include <fmt/format.h>

#include "actors/kernels/update/state_memory.hpp"
#include "actors/kernels/update/update_pass.hpp"
#include "actors/memory/arena.hpp"
#include "actors/storage/file.hpp"
#include "engine/types/stopwatch.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/system/machine.hpp"
#include "runtime/system/user_cache.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::size_t kLeastBytes = std::size_t{96} << 20;  // moved in a pass
constexpr std::size_t kMostOfFree = 8;                      // parts of the free memory
constexpr std::size_t kChunkElements = std::size_t{128} << 10;
constexpr int kRounds = 11;  // a stall of the host must not stay in the cache as its speed
constexpr std::string_view kHeader = "tandem bandwidths 2";
constexpr std::string_view kEveryKey = "*";

/// That a pass has to move so that the caches cannot keep what it moves: it reads and writes, so
/// memory is half of it.
std::size_t measured_bytes() {
  const std::size_t beyond_caches = 4 * machine::cache_bytes();
  return std::max(kLeastBytes,
                  std::min(beyond_caches, machine::memory_available_bytes() / kMostOfFree));
}

/// The lines of the file behind its header; none where it is not ours.
std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  std::string line;
  if (!std::getline(file, line) || line != kHeader) {
    return {};
  }
  while (std::getline(file, line)) {
    lines.push_back(line);
  }
  return lines;
}

bool is_of(std::string_view line, std::string_view key) {
  return line.starts_with(key) && line.size() > key.size() && line[key.size()] == '\t';
}

/// The number behind the key; 0: there is none.
double value_of(const std::vector<std::string>& lines, std::string_view key) {
  for (const std::string& line : lines) {
    if (!is_of(line, key)) {
      continue;
    }
    const char* begin = line.data() + key.size() + 1;
    const char* end = line.data() + line.size();
    double value = 0;
    const auto [last, error] = std::from_chars(begin, end, value);
    if (error == std::errc() && last == end && std::isfinite(value) && value > 0) {
      return value;
    }
  }
  return 0;
}

/// Memory of an update as a rank has it, its second copy included if the pass writes there.
class MeasuredUnit {
 public:
  MeasuredUnit(const UpdateKernel& kernel, std::size_t elements)
      : state_(state_bytes(kernel.layout, kernel.update, kernel.weight, elements)),
        weight_(elements * bytes_of(kernel.weight)),
        gradient_(elements * bytes_of(kernel.gradient)),
        other_state_(kernel.speculative ? state_.size_bytes() : 0),
        other_weight_(kernel.speculative ? elements * sizeof(float) : 0) {
    const bool is_master = kernel.weight == DType::kF32;
    UpdateBuffers& home = unit_.buffers;
    home = {.gradient = gradient_.data(),
            .gradient_type = kernel.gradient,
            .weight = is_master ? nullptr : weight_.data(),
            .weight_type = kernel.weight};
    if (is_master) {
      home.master = weight_.data();
    }
    unit_.ranges = {{0, elements, 0}};
    place_state(home, kernel.layout, kernel.update, kernel.weight, elements, state_.data());
    if (!kernel.speculative) {
      return;
    }
    UpdateBuffers other = home;
    place_state(other, kernel.layout, kernel.update, kernel.weight, elements, other_state_.data());
    unit_.shadow.master = is_master ? other_weight_.data() : other.master;
    for (std::size_t array = 0; array < 2; ++array) {
      unit_.shadow.state[array] = other.state[array];
      unit_.shadow.scale[array] = other.scale[array];
    }
    unit_.shadow.weight = unit_.backs_up_weight() && !is_master ? other_weight_.data() : nullptr;
  }

  [[nodiscard]] const UpdatedUnit& updated() const noexcept { return unit_; }

 private:
  HostBuffer state_, weight_, gradient_, other_state_, other_weight_;
  UpdatedUnit unit_;
};

}  // namespace

double update_bytes_per_element(const UpdateKernel& kernel) {
  constexpr std::size_t kMany = std::size_t{1} << 20;
  const StateSizes sizes = state_sizes(kernel.layout, kernel.update, kernel.weight, kMany);
  const auto state = static_cast<double>(sizes.total()) / kMany;
  const auto gradient = static_cast<double>(bytes_of(kernel.gradient));
  const double weight = kernel.weight == DType::kF32          ? 2.0 * sizeof(float)
                        : kernel.layout != StateLayout::kFp32 ? 2.0 * bytes_of(kernel.weight)
                                                              : 1.0 * bytes_of(kernel.weight);
  return 2 * state + gradient + weight;
}

double measure_update_speed(const UpdateKernel& kernel) {
  const double per_element = update_bytes_per_element(kernel);
  const std::size_t chunks = std::max<std::size_t>(
      static_cast<std::size_t>(kernel.threads),
      static_cast<std::size_t>(static_cast<double>(measured_bytes()) / per_element) /
          kChunkElements);
  const MeasuredUnit unit(kernel, chunks * kChunkElements);
  const UpdateStep step = UpdateStep::make(kernel.update, 1, 1.0);
  const UpdatePass pass = kernel.speculative ? UpdatePass::kSpeculative : UpdatePass::kInPlace;
  EventLoop loop({.name = "measurement"});
  CpuPool pool(loop, {.threads = kernel.threads, .name = "measurement"});
  std::vector<double> seconds;
  for (int round = 0; round <= kRounds; ++round) {
    const Stopwatch watch;
    loop.run(
        [](CpuPool* on, std::size_t count, const UpdateStep* constants, const UpdatedUnit* arrays,
           UpdatePass how) -> Task<> {
          co_await on->for_chunks(count, [=](std::size_t chunk) {
            run_update_pass(how, *arrays, constants, chunk * kChunkElements,
                            (chunk + 1) * kChunkElements);
          });
        },
        &pool, chunks, &step, &unit.updated(), pass);
    if (round > 0) {  // the first one touches the memory
      seconds.push_back(watch.elapsed_s());
    }
  }
  std::ranges::nth_element(seconds, seconds.begin() + kRounds / 2);
  return per_element * static_cast<double>(chunks * kChunkElements) / seconds[kRounds / 2];
}

BandwidthCache BandwidthCache::of_user() {
  const std::filesystem::path folder = user_cache_folder();
  return BandwidthCache(folder.empty() ? "" : (folder / "bandwidths.tsv").string());
}

double BandwidthCache::find(std::string_view key) const {
  const std::vector<std::string> lines =
      path_.empty() ? std::vector<std::string>() : lines_of(path_);
  const double of_key = value_of(lines, key);
  return of_key > 0 ? of_key : value_of(lines, kEveryKey);
}

void BandwidthCache::keep(std::string_view key, double value) const {
  if (path_.empty()) {
    return;
  }
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
  std::string text = fmt::format("{}\n", kHeader);
  for (const std::string& line : lines_of(path_)) {
    if (!is_of(line, key)) {
      text += line + "\n";
    }
  }
  text += fmt::format("{}\t{}\n", key, value);
  try {
    write_file(path_, "cache", text);
  } catch (const Error&) {  // it is measured again
  }
}

std::string cache_key(const UpdateKernel& kernel) {
  return fmt::format(
      "{}, {} cores, {} threads, optimizer {} of {} arrays, {} state, {} weights, {} gradients{}",
      machine::cpu_name(), machine::cores().size(), kernel.threads, name_of(kernel.update.kind),
      state_arrays(kernel.update), name_of(kernel.layout), name_of(kernel.weight),
      name_of(kernel.gradient), kernel.speculative ? ", ahead" : "");
}

double update_speed(const UpdateKernel& kernel) {
  return BandwidthCache::of_user().get(cache_key(kernel),
                                       [&kernel] { return measure_update_speed(kernel); });
}

}  // namespace tandem
