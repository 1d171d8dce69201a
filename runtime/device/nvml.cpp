#include "runtime/device/nvml.hpp"

#include <dlfcn.h>

namespace tandem {
namespace {

// The part of nvml.h that is used; its values are fixed.
constexpr int kSuccess = 0;
struct Memory {
  unsigned long long total, free, used;  // bytes
};

template <class Function>
Function* symbol(void* library, const char* name) {
  return library != nullptr ? reinterpret_cast<Function*>(::dlsym(library, name)) : nullptr;
}

/// "GPU-" and the digits in groups of 8, 4, 4, 4 and 12, as NVML writes a UUID.
std::string text_of(const std::string& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    text += i == 8 || i == 12 || i == 16 || i == 20 ? "-" : "";
    text += uuid[i];
  }
  return text;
}

}  // namespace

Nvml::Nvml(const char* library) : library_(::dlopen(library, RTLD_NOW | RTLD_LOCAL)) {
  auto* const init = symbol<int()>(library_, "nvmlInit_v2");
  if (library_ != nullptr && (init == nullptr || init() != kSuccess)) {
    ::dlclose(library_);
    library_ = nullptr;
  }
}

Nvml::~Nvml() {
  if (library_ != nullptr) {
    if (auto* const shutdown = symbol<int()>(library_, "nvmlShutdown"); shutdown != nullptr) {
      shutdown();
    }
    ::dlclose(library_);
  }
}

std::uint64_t Nvml::free_bytes(const std::string& uuid) const {
  auto* const find = symbol<int(const char*, void**)>(library_, "nvmlDeviceGetHandleByUUID");
  auto* const ask = symbol<int(void*, void*)>(library_, "nvmlDeviceGetMemoryInfo");
  void* gpu = nullptr;
  Memory memory{};
  const bool known = find != nullptr && ask != nullptr &&
                     find(text_of(uuid).c_str(), &gpu) == kSuccess && ask(gpu, &memory) == kSuccess;
  return known ? memory.free : 0;
}

}  // namespace tandem
