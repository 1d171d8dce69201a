// runtime/device/nvml.hpp — the memory that is free on each GPU, by NVML, the driver's library for
// management, which is loaded while an Nvml lives.
//
// CUDA can answer that only on a GPU on which the process has a context, which takes half a GiB of
// its memory; NVML needs none. Thread rule: any thread. Errors: none, an answer that is missing is
// 0.
#pragma once

#include <cstdint>
#include <string>

namespace tandem {

class Nvml {
 public:
  explicit Nvml(const char* library = "libnvidia-ml.so.1");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// Returns the free bytes of the GPU with that UUID, 32 hexadecimal digits; 0 if that is unknown.
  [[nodiscard]] std::uint64_t free_bytes(const std::string& uuid) const;

 private:
  void* library_ = nullptr;  // null: not there, or it does not start
};

}  // namespace tandem
