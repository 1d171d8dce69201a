// runtime/device/cuda_api.hpp — a table of the CUDA runtime's functions that the project calls.
//
// Types are plain, so that code that includes this needs no header of CUDA, and tests can fill the
// table with their own functions. cuda_api.cpp (compiled if CUDA is found) fills it from the
// runtime; no_cuda.cpp is compiled otherwise and throws.
// Invariant: no entry waits for the whole device. Statuses are cudaError_t's numbers.
// Thread rule: any thread; memory, streams and events are made on the device that use_device()
// chose on that thread.
#pragma once

#include <cstddef>

namespace tandem {

struct CudaApi {
  using Status = int;
  static constexpr Status kSuccess = 0;
  static constexpr Status kOutOfMemory = 2;
  static constexpr Status kNotReady = 600;
  static constexpr Status kAlreadyPinned = 712;

  /// name_of returns a status's name ("cudaErrorIllegalAddress"), and text_of its description ("an
  /// illegal memory access was encountered"). Both live for ever.
  const char* (*name_of)(Status status);
  const char* (*text_of)(Status status);
  /// Returns the error of a launch on this thread and clears it (unless the device is lost).
  Status (*take_last_error)();

  /// Sets `version` to the CUDA version that the driver supports: 12030 is 12.3.
  Status (*driver_version)(int* version);
  Status (*use_device)(int device);
  Status (*memory_info)(std::size_t* free_bytes, std::size_t* total_bytes);
  /// Takes device memory from the stream-ordered pool; it is usable on all streams when the call
  /// returns.
  Status (*take_memory)(void** memory, std::size_t bytes, void* stream);
  /// Frees the memory after the work that `stream` was given before; does not wait.
  Status (*give_memory_back)(void* memory, void* stream);
  /// Takes pinned host memory, which every device reaches at the same address.
  Status (*take_pinned)(void** memory, std::size_t bytes);
  Status (*give_pinned_back)(void* memory);
  /// Pins existing memory, in whole pages; unpin() it before it is freed.
  Status (*pin)(void* memory, std::size_t bytes);
  Status (*unpin)(void* memory);

  /// Makes a stream that does not wait for the legacy default stream. `high` gives it the device's
  /// greatest priority instead of its least.
  Status (*make_stream)(void** stream, bool high);
  Status (*destroy_stream)(void* stream);
  /// Makes an event without timing.
  Status (*make_event)(void** event);
  Status (*destroy_event)(void* event);
  Status (*record)(void* event, void* stream);
  /// Returns kSuccess if the event was reached, and kNotReady if not; anything else is the device's
  /// error.
  Status (*query)(void* event);
  Status (*wait)(void* stream, void* event);
  /// Copies between host and device memory, or within one of them; the addresses tell which.
  Status (*copy)(void* to, const void* from, std::size_t bytes, void* stream);

  /// Returns the table of the real runtime. Throws Error(kRefused) if the build has no CUDA parts.
  [[nodiscard]] static const CudaApi& load();
};

}  // namespace tandem
