#include "runtime/system/limits.hpp"

#include <algorithm>
#include <latch>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <sys/resource.h>

#include "runtime/system/machine.hpp"
#include "runtime/util/error.hpp"

namespace tandem::limits {

namespace cgroup = machine::cgroup;

namespace {

constexpr std::uint64_t kLeastStackBytes = 512 << 10;
constexpr rlim_t kLeastFiles = 64;

std::string text_of(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit);
}

rlim_t soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  return ::getrlimit(resource, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

}  // namespace

std::uint64_t oom_kills() {
  std::uint64_t kills = 0;
  if (const auto folders = cgroup::folders(""); !folders.empty()) {
    kills += cgroup::stat_field(folders.front() + "/memory.events", "oom_kill");
  }
  if (const auto folders = cgroup::folders("memory"); !folders.empty()) {
    kills += cgroup::stat_field(folders.front() + "/memory.oom_control", "oom_kill");
  }
  return kills;
}

std::optional<std::uint64_t> memory_bytes() {
  std::optional<std::uint64_t> least;
  const auto take = [&least](const std::string& path) {
    // Version 1 writes a huge number where there is no limit.
    constexpr std::uint64_t kNone = std::uint64_t{1} << 62;
    if (const auto limit = cgroup::leading_number(cgroup::read_text(path));
        limit && *limit < kNone) {
      least = std::min(least.value_or(*limit), *limit);
    }
  };
  for (const std::string& folder : cgroup::folders("")) {
    take(folder + "/memory.max");
  }
  for (const std::string& folder : cgroup::folders("memory")) {
    take(folder + "/memory.limit_in_bytes");
  }
  return least;
}

std::string threads_text() {
  std::string text;
  for (const char* controller : {"", "pids"}) {
    for (const std::string& folder : cgroup::folders(controller)) {
      if (const auto most = cgroup::leading_number(cgroup::read_text(folder + "/pids.max"))) {
        text += fmt::format(
            "pids.max {} of the control group ({} in use), ", *most,
            cgroup::leading_number(cgroup::read_text(folder + "/pids.current")).value_or(0));
      }
    }
  }
  if (const rlim_t space = soft_limit(RLIMIT_AS); space != RLIM_INFINITY) {
    text += fmt::format("ulimit -v {}, ", space >> 10);
  }
  return text + fmt::format("ulimit -u {}", text_of(soft_limit(RLIMIT_NPROC)));
}

void require_threads(int threads, const std::string& use_fewer) {
  std::latch over{1};
  std::vector<std::thread> made;
  made.reserve(static_cast<std::size_t>(threads));
  std::string why;
  try {
    while (made.size() < static_cast<std::size_t>(threads)) {
      made.emplace_back([&over] { over.wait(); });
    }
  } catch (const std::system_error& error) {
    why = error.code().message();
  }
  const std::string limits = why.empty() ? "" : threads_text();
  over.count_down();
  for (std::thread& thread : made) {
    thread.join();
  }
  if (!why.empty()) {
    throw failure(ExitCode::kRefused, "limits",
                  "{} threads are needed and {} can be made: {} ({}); raise the limit or {}",
                  threads, made.size(), why, limits, use_fewer);
  }
}

std::uint64_t stack_bytes() {
  const rlim_t limit = soft_limit(RLIMIT_STACK);
  return limit == RLIM_INFINITY ? UINT64_MAX : limit;
}

void require_stack() {
  if (stack_bytes() < kLeastStackBytes) {
    throw failure(ExitCode::kRefused, "limits",
                  "the stack limit is {} KiB and {} KiB are needed; raise it with `ulimit -s 8192`",
                  stack_bytes() >> 10, kLeastStackBytes >> 10);
  }
}

void require_files() {
  if (const rlim_t files = soft_limit(RLIMIT_NOFILE); files < kLeastFiles) {
    throw failure(ExitCode::kRefused, "limits",
                  "the limit of open files is {} and {} are needed; raise it with `ulimit -n 1024`",
                  files, kLeastFiles);
  }
}

}  // namespace tandem::limits
