#include "engine/tensors/torch_cuda.hpp"

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <optional>
#include <string_view>

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <link.h>

#include "runtime/device/device.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

// Where the CPU part was loaded from; the CUDA part of another build must not come in.
std::filesystem::path torch_folder() {
  void* const loaded = ::dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  const link_map* entry = nullptr;
  if (loaded == nullptr || ::dlinfo(loaded, RTLD_DI_LINKMAP, &entry) != 0) {
    return {};
  }
  return std::filesystem::path(entry->l_name).parent_path();
}

// Call it before ATen is asked for CUDA, because ATen keeps its first answer.
std::string open_cuda_part() {
  // One workspace of cuBLAS for each stream makes its sums the same in every run.
  (void)::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  // A plan fills the device: what other sizes leave in between must be of use to later ones.
  (void)::setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", 0);
  const std::filesystem::path library = torch_folder() / "libtorch_cuda.so";
  if (::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const char* why = ::dlerror();
    return std::filesystem::exists(library)
               ? std::string("LibTorch's CUDA part cannot be loaded: ") + (why ? why : "")
               : "this LibTorch is one for the CPU, in " + torch_folder().string();
  }
  return at::hasCUDA() ? "" : "LibTorch finds no usable GPU or driver";
}

/// LibTorch's message runs over a page; the sizes are in its first sentences.
std::string first_sentences(std::string_view text) {
  text = text.substr(0, text.find(" If reserved but unallocated"));
  return std::string(text.substr(0, text.find_last_not_of(". \n") + 1));
}

class TorchCuda final : public ComputeDevice {
 public:
  explicit TorchCuda(int index)
      : device_(at::kCUDA, static_cast<c10::DeviceIndex>(index)),
        guard_(at::kCUDA),
        // Above the updates, which have the lowest priority; collectives have the highest.
        stream_(guard_.getStreamFromGlobalPool(device_, /*isHighPriority=*/true)) {
    c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
  }
  // ATen keeps freed blocks by their stream, and gives them back only when a request of its own
  // fails: the next engine has another stream, and blocks that ATen does not allocate.
  ~TorchCuda() override {
    try {
      c10::getDeviceAllocator(device_.type())->emptyCache();
    } catch (const std::exception&) {  // of a device that has failed, which ends the run anyway
    }
  }
  TorchCuda(const TorchCuda&) = delete;
  TorchCuda& operator=(const TorchCuda&) = delete;

  [[nodiscard]] std::optional<int> gpu_of_tensors() const override { return device_.index(); }
  [[nodiscard]] void* stream() const override { return guard_.getStreamNativeHandle(stream_); }

  // The lane computes on this device alone, so its thread keeps both and needs no guards.
  void prepare_thread() override {
    guard_.setDevice(device_);
    (void)guard_.exchangeStream(stream_);
    at::Context& context = at::globalContext();
    // The same bits whatever overlaps, as on the CPU. An operation without such a kernel throws: if
    // it only warned, fused attention's backward would add in any order, too.
    context.setDeterministicAlgorithms(true, /*warn_only=*/false);
    context.setDeterministicFillUninitializedMemory(false);
    context.setDeterministicCuDNN(true);
    context.setBenchmarkCuDNN(false);
    context.setAllowTF32CuDNN(false);  // fp32 is fp32; matmuls are so by default
  }

  void queue(std::function<void()> work) override { run_on_device(work); }

 private:
  at::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream stream_;
};

}  // namespace

const std::string& why_torch_has_no_cuda() {
  static const std::string kWhy = open_cuda_part();
  return kWhy;
}

std::size_t held_by_aten(at::Device device) {
  if (!device.is_cuda()) {
    return 0;
  }
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(device.type());
  if (!allocator->initialized()) {
    return 0;
  }
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  try {
    return static_cast<std::size_t>(
        allocator->getDeviceStats(device.index()).reserved_bytes[kAll].peak);
  } catch (const std::exception&) {  // of a device that has failed, which ends the run anyway
    return 0;
  }
}

at::Device device_of_tensors(const ComputeDevice* compute) noexcept {
  const std::optional<int> gpu = compute != nullptr ? compute->gpu_of_tensors() : std::nullopt;
  return gpu ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(*gpu)) : at::Device(at::kCPU);
}

void run_on_device(const std::function<void()>& work) {
  try {
    work();
  } catch (const c10::OutOfMemoryError& full) {
    throw DeviceOutOfMemory(ExitCode::kRefused, first_sentences(full.what_without_backtrace()));
  }
}

std::shared_ptr<ComputeDevice> torch_cuda_device(int index) {
  TANDEM_CHECK(why_torch_has_no_cuda().empty(), "LibTorch has its CUDA part");
  at::globalContext().lazyInitDevice(at::kCUDA);
  return std::make_shared<TorchCuda>(index);
}

}  // namespace tandem
