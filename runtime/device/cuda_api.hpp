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

  /// "cudaErrorIllegalAddress (an illegal memory access was encountered)" is name_of and text_of.
  /// They live for ever.
  const char* (*name_of)(Status status);
  const char* (*text_of)(Status status);
  /// The error of a launch on this thread, which is forgotten by the call (unless the device is
  /// lost).
  Status (*take_last_error)();

  /// The version of CUDA that the driver knows: 12030 is 12.3.
  Status (*driver_version)(int* version);
  Status (*use_device)(int device);
  Status (*memory_info)(std::size_t* free_bytes, std::size_t* total_bytes);
  /// Device memory out of the stream-ordered pool, usable on all streams when the call returns.
  Status (*take_memory)(void** memory, std::size_t bytes, void* stream);
  /// Behind what `stream` was given; does not wait.
  Status (*give_memory_back)(void* memory, void* stream);
  /// Pinned host memory that every device reaches at the same address.
  Status (*take_pinned)(void** memory, std::size_t bytes);
  Status (*give_pinned_back)(void* memory);
  /// Pins memory that is there already, whole pages; unpin() before it goes.
  Status (*pin)(void* memory, std::size_t bytes);
  Status (*unpin)(void* memory);

  /// Does not wait for the legacy default stream. `high`: the device's greatest priority instead of
  /// its least.
  Status (*make_stream)(void** stream, bool high);
  Status (*destroy_stream)(void* stream);
  /// Without timing.
  Status (*make_event)(void** event);
  Status (*destroy_event)(void* event);
  Status (*record)(void* event, void* stream);
  /// kSuccess: reached; kNotReady; anything else is the device's error.
  Status (*query)(void* event);
  Status (*wait)(void* stream, void* event);
  /// Between host and device memory, or within one of them; the addresses tell.
  Status (*copy)(void* to, const void* from, std::size_t bytes, void* stream);

  /// The real one. Throws Error(kRefused) where the build has none.
  [[nodiscard]] static const CudaApi& load();
};

}  // namespace tandem
