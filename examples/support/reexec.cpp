#include "examples/support/reexec.hpp"

#include <cstdlib>

#include <malloc.h>
#include <unistd.h>

namespace tandem {

void reexec_with_tuned_env(char** argv) {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) {
    return;
  }
  // Some ten microseconds: longer than the team takes from one parallel region to the next.
  ::setenv("GOMP_SPINCOUNT", "10000", 1);
  for (const char* capacity : {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"}) {
    ::setenv(capacity, "64", 0);
  }
  ::execv("/proc/self/exe", argv);  // returns only if the program can't be started again
}

}  // namespace tandem
