#include "trainer/program/reexec.hpp"

#include <array>
#include <cstddef>
#include <string_view>

#include <malloc.h>
#include <unistd.h>

namespace tandem {

namespace {

// Some ten microseconds of spinning: longer than the team takes from one parallel region to the
// next.
constexpr std::array<const char*, 3> kTuned = {
    "GOMP_SPINCOUNT=10000", "ONEDNN_PRIMITIVE_CACHE_CAPACITY=64", "LRU_CACHE_CAPACITY=64"};

bool is_set(char** environment, std::string_view name) {
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    if (entry.starts_with(name) && entry.substr(name.size()).starts_with('=')) {
      return true;
    }
  }
  return false;
}

/// Starts the program anew, unless a policy is set. Before the libraries' initialisers, which the
/// first of the two processes would run for nothing; so nothing of them may be called here.
void start_tuned(int, char** argv, char** environment) {
  if (is_set(environment, "OMP_WAIT_POLICY") || is_set(environment, "GOMP_SPINCOUNT")) {
    return;
  }
  std::array<char*, 4096> tuned{};
  std::size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    if (count + kTuned.size() + 1 >= tuned.size()) {
      return;
    }
    tuned[count] = environment[count];
  }
  for (const char* entry : kTuned) {
    const std::string_view text = entry;
    if (!is_set(environment, text.substr(0, text.find('=')))) {
      tuned[count++] = const_cast<char*>(entry);
    }
  }
  ::execve("/proc/self/exe", argv, tuned.data());  // returns only where it cannot be started again
}

[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kBeforeInitialisers)(int, char**, char**) = &start_tuned;

}  // namespace

void reexec_with_tuned_env() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace tandem
