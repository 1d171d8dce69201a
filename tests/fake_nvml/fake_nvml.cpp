// A library with the names of NVML that knows one GPU, of which 5 GiB are free, and no other.
#include <cstring>

extern "C" {

namespace {
int started = 0;
struct Memory {
  unsigned long long total, free, used;
};
}  // namespace

int nvmlInit_v2() {
  ++started;
  return 0;
}
int nvmlShutdown() {
  --started;
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** gpu) {
  const bool is_it = std::strcmp(uuid, "GPU-00112233-4455-6677-8899-aabbccddeeff") == 0;
  *gpu = &started;
  return started == 1 && is_it ? 0 : 6;  // NVML_ERROR_NOT_FOUND
}
int nvmlDeviceGetMemoryInfo(void* gpu, void* memory) {
  *static_cast<Memory*>(memory) = {80ULL << 30, 5ULL << 30, 75ULL << 30};
  return gpu == &started ? 0 : 2;  // NVML_ERROR_INVALID_ARGUMENT
}
}
