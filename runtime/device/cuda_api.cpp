#include "runtime/device/cuda_api.hpp"

#include <cuda_runtime_api.h>

#include "runtime/device/cuda_environment.hpp"

namespace tandem {
namespace {

static_assert(CudaApi::kSuccess == cudaSuccess);
static_assert(CudaApi::kOutOfMemory == cudaErrorMemoryAllocation);
static_assert(CudaApi::kNotReady == cudaErrorNotReady);
static_assert(CudaApi::kAlreadyPinned == cudaErrorHostMemoryAlreadyRegistered);

cudaStream_t stream_of(void* stream) noexcept { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) noexcept { return static_cast<cudaEvent_t>(event); }

const char* name_of(int status) { return cudaGetErrorName(static_cast<cudaError_t>(status)); }
const char* text_of(int status) { return cudaGetErrorString(static_cast<cudaError_t>(status)); }
int take_last_error() { return cudaGetLastError(); }
int driver_version(int* version) { return cudaDriverGetVersion(version); }
int use_device(int device) { return cudaSetDevice(device); }
int memory_info(std::size_t* free_bytes, std::size_t* total_bytes) {
  return cudaMemGetInfo(free_bytes, total_bytes);
}

// cudaFree waits for the whole device, cudaFreeAsync for nothing. A request that the pool cannot
// fill is no error that stays.
int take_memory(void** memory, std::size_t bytes, void* stream) {
  const cudaError_t status = cudaMallocAsync(memory, bytes, stream_of(stream));
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    return status;
  }
  return cudaStreamSynchronize(stream_of(stream));  // of a stream that carries allocations alone
}
int give_memory_back(void* memory, void* stream) {
  return cudaFreeAsync(memory, stream_of(stream));
}

int take_pinned(void** memory, std::size_t bytes) {
  const cudaError_t status =
      cudaHostAlloc(memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
  }
  return status;
}
int give_pinned_back(void* memory) { return cudaFreeHost(memory); }
int pin(void* memory, std::size_t bytes) {
  const cudaError_t status =
      cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
  }
  return status;
}
int unpin(void* memory) { return cudaHostUnregister(memory); }

int make_stream(void** stream, bool high) {
  int least = 0;
  int greatest = 0;
  const cudaError_t status = cudaDeviceGetStreamPriorityRange(&least, &greatest);
  if (status != cudaSuccess) {
    return status;
  }
  return cudaStreamCreateWithPriority(reinterpret_cast<cudaStream_t*>(stream),
                                      cudaStreamNonBlocking, high ? greatest : least);
}
int destroy_stream(void* stream) { return cudaStreamDestroy(stream_of(stream)); }

int make_event(void** event) {
  return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), cudaEventDisableTiming);
}
int destroy_event(void* event) { return cudaEventDestroy(event_of(event)); }
int record(void* event, void* stream) {
  return cudaEventRecord(event_of(event), stream_of(stream));
}
int query(void* event) { return cudaEventQuery(event_of(event)); }
int wait(void* stream, void* event) {
  return cudaStreamWaitEvent(stream_of(stream), event_of(event), 0);
}
int copy(void* to, const void* from, std::size_t bytes, void* stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream));
}

}  // namespace

const CudaApi& CudaApi::load() {
  prepare_cuda_environment();
  static constexpr CudaApi kReal{.name_of = &tandem::name_of,
                                 .text_of = &tandem::text_of,
                                 .take_last_error = &tandem::take_last_error,
                                 .driver_version = &tandem::driver_version,
                                 .use_device = &tandem::use_device,
                                 .memory_info = &tandem::memory_info,
                                 .take_memory = &tandem::take_memory,
                                 .give_memory_back = &tandem::give_memory_back,
                                 .take_pinned = &tandem::take_pinned,
                                 .give_pinned_back = &tandem::give_pinned_back,
                                 .pin = &tandem::pin,
                                 .unpin = &tandem::unpin,
                                 .make_stream = &tandem::make_stream,
                                 .destroy_stream = &tandem::destroy_stream,
                                 .make_event = &tandem::make_event,
                                 .destroy_event = &tandem::destroy_event,
                                 .record = &tandem::record,
                                 .query = &tandem::query,
                                 .wait = &tandem::wait,
                                 .copy = &tandem::copy};
  return kReal;
}

}  // namespace tandem
