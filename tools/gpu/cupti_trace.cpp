// cupti_trace.cpp — says what a program's GPU did, when the program ends: time by kernel, copies,
// how busy each stream was, and the gaps in which no kernel ran. tools/gpu/pack.py compiles it into
// a library; the driver loads that into any program, which need not know of it:
//
//   CUDA_INJECTION64_PATH=libcupti_trace.so CUPTI_TRACE_LAST_MS=800 bench_step --device=cuda
//
// CUPTI_TRACE_LAST_MS: the window is that long and ends with the last kernel, so that it holds
// steady steps and no loading; absent: the window is all. CUPTI_TRACE_OUT: a file to append to;
// absent: stderr. CUPTI_TRACE_GAP_US: the shortest gap that is listed (20).
// Invariant: each activity counts with the part that lies inside the window, and what CUPTI lost is
// said. A program that ends by _exit or a signal prints nothing.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>

#include <cupti.h>

#include "tools/gpu/trace_report.hpp"

namespace {

using tandem::gpu_trace::Collected;
using tandem::gpu_trace::Kind;

constexpr std::size_t kBufferBytes = 8U << 20U;
constexpr std::size_t kActivitiesMax = 40'000'000;

double number_of(const char* variable, double otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr && *text != '\0' ? std::strtod(text, nullptr) : otherwise;
}

/// All activities so far. CUPTI's thread adds to it, and the thread that ends the program reads it.
class Recorder {
 public:
  /// Never destroyed: CUPTI can deliver while the program exits.
  static Recorder& one() {
    static auto* const kept = new Recorder;
    return *kept;
  }

  void add(Kind kind, const std::string& name, std::uint64_t begin_ns, std::uint64_t end_ns,
           std::uint32_t stream, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (begin_ns >= end_ns || all_.activities.size() == kActivitiesMax) {
      all_.lost += 1;
      return;
    }
    const auto [at, added] = ids_.try_emplace(name, static_cast<std::uint32_t>(all_.names.size()));
    if (added) {
      all_.names.push_back(name);
    }
    all_.activities.push_back({begin_ns, end_ns, bytes, at->second, stream, kind});
  }
  void add_lost(std::size_t count) {
    const std::lock_guard lock(mutex_);
    all_.lost += count;
  }

  void print(std::FILE* out) {
    const std::lock_guard lock(mutex_);
    tandem::gpu_trace::print(out, all_,
                             {.last_ms = number_of("CUPTI_TRACE_LAST_MS", 0),
                              .gap_us = number_of("CUPTI_TRACE_GAP_US", 20)});
  }

 private:
  std::mutex mutex_;
  Collected all_;
  std::unordered_map<std::string, std::uint32_t> ids_;
};

// ---- CUPTI's side

std::string name_of_copy(std::uint8_t direction, std::uint8_t host_memory) {
  const char* const memory = host_memory == CUPTI_ACTIVITY_MEMORY_KIND_PINNED     ? " (pinned)"
                             : host_memory == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE ? " (pageable)"
                                                                                  : "";
  switch (direction) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return std::string("host to device") + memory;
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return std::string("device to host") + memory;
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "device to device";
    default:
      return "another copy";
  }
}

void take(const CUpti_Activity* activity) {
  Recorder& recorder = Recorder::one();
  switch (activity->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& a = *reinterpret_cast<const CUpti_ActivityKernel10*>(activity);
      recorder.add(Kind::kKernel, a.name != nullptr ? a.name : "?", a.start, a.end, a.streamId, 0);
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& a = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(activity);
      const bool down = a.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH;
      recorder.add(Kind::kCopy, name_of_copy(a.copyKind, down ? a.dstKind : a.srcKind), a.start,
                   a.end, a.streamId, a.bytes);
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
      const auto& a = *reinterpret_cast<const CUpti_ActivityMemcpyPtoP4*>(activity);
      recorder.add(Kind::kCopy, "GPU to GPU", a.start, a.end, a.streamId, a.bytes);
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& a = *reinterpret_cast<const CUpti_ActivityMemset4*>(activity);
      recorder.add(Kind::kMemset, "memset", a.start, a.end, a.streamId, a.bytes);
      break;
    }
    default:
      break;
  }
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* records_max) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *records_max = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer,
                          std::size_t /*size*/, std::size_t used) {
  CUpti_Activity* activity = nullptr;
  while (used > 0 && cuptiActivityGetNextRecord(buffer, used, &activity) == CUPTI_SUCCESS) {
    take(activity);
  }
  std::size_t lost = 0;
  cuptiActivityGetNumDroppedRecords(context, stream, &lost);
  Recorder::one().add_lost(lost);
  std::free(buffer);
}

void print_at_exit() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const char* const path = std::getenv("CUPTI_TRACE_OUT");
  std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "a");
  Recorder::one().print(file == nullptr ? stderr : file);
  if (file != nullptr) {
    std::fclose(file);
  }
}

bool works(CUptiResult result, const char* call) {
  const char* text = "?";
  if (result != CUPTI_SUCCESS) {
    cuptiGetResultString(result, &text);
    std::fprintf(stderr, "cupti_trace: %s: %s\n", call, text);
  }
  return result == CUPTI_SUCCESS;
}

}  // namespace

/// The driver calls this when the program initialises CUDA. The program goes on where it fails.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  if (works(cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "callbacks")) {
    for (const CUpti_ActivityKind kind :
         {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
          CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET}) {
      works(cuptiActivityEnable(kind), "an activity");
    }
    std::atexit(print_at_exit);
  }
  return 1;
}
