// actors/collectives/nccl/nccl_api.hpp — a table of the NCCL functions that the project calls.
//
// The types are plain, so that code that includes this file needs no header of NCCL or CUDA, and
// tests can fill the table with their own functions. If nccl.h is found, nccl_load.cpp is compiled:
// it checks at compile time that numbers, layouts and signatures are NCCL's, and its load() opens
// the library. Otherwise no_nccl.cpp is compiled, whose load() throws.
// Thread rule: as NCCL's: calls on one communicator come from one thread at a time, except
// async_error() and abort(), which any thread may call.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

namespace tandem {

enum class NcclResult : int {
  kSuccess = 0,
  kCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
enum class NcclType : int { kBytes = 1, kF16 = 6, kF32 = 7, kBF16 = 9 };
enum class NcclOp : int { kSum = 0 };

struct NcclUniqueId {
  char bytes[128];
};

/// ncclConfig_t as of 2.28. An older library ignores the members that it does not know.
struct NcclConfig {
  static constexpr int kUnset = INT_MIN;
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 22809;
  int blocking = kUnset;
  int cga_cluster_size = kUnset;
  int min_ctas = kUnset;
  int max_ctas = kUnset;
  const char* net_name = nullptr;
  int split_share = kUnset;
  int traffic_class = kUnset;
  const char* name = nullptr;
  int collnet_enable = kUnset;
  int cta_policy = kUnset;
  int shrink_share = kUnset;
  int nvls_ctas = kUnset;
  int channels_per_net_peer = kUnset;
  int nvlink_centric_sched = kUnset;
};

/// Communicators are ncclComm_t, streams cudaStream_t, counts in elements.
struct NcclApi {
  NcclResult (*version)(int* version);  // 22809 is 2.28.9
  NcclResult (*unique_id)(NcclUniqueId* id);
  NcclResult (*init_rank)(void** communicator, int world, NcclUniqueId id, int rank,
                          NcclConfig* config);
  NcclResult (*async_error)(void* communicator, NcclResult* state);
  NcclResult (*finalize)(void* communicator);
  NcclResult (*destroy)(void* communicator);
  NcclResult (*abort)(void* communicator);
  const char* (*text_of)(NcclResult result);
  const char* (*last_error)(void* communicator);  // its text; may be empty

  NcclResult (*group_start)();
  NcclResult (*group_end)();
  NcclResult (*all_gather)(const void* from, void* into, std::size_t count, NcclType type,
                           void* communicator, void* stream);
  NcclResult (*broadcast)(const void* from, void* into, std::size_t count, NcclType type, int root,
                          void* communicator, void* stream);
  // `into` gets `count` elements; for a reduce-scatter, `from` has `count` elements for each rank.
  NcclResult (*reduce_scatter)(const void* from, void* into, std::size_t count, NcclType type,
                               NcclOp op, void* communicator, void* stream);
  NcclResult (*all_reduce)(const void* from, void* into, std::size_t count, NcclType type,
                           NcclOp op, void* communicator, void* stream);
  NcclResult (*send)(const void* from, std::size_t count, NcclType type, int peer,
                     void* communicator, void* stream);
  NcclResult (*receive)(void* into, std::size_t count, NcclType type, int peer, void* communicator,
                        void* stream);

  /// Opens libnccl.so.2: the library that TANDEM_NCCL_LIBRARY names, else the one of the LibTorch
  /// in this process, else the system's. The library is opened once; any thread may call this.
  /// Throws Error(kRefused), which names every path that was tried.
  [[nodiscard]] static const NcclApi& load();
};

}  // namespace tandem
