// actors/collectives/nccl/nccl_load.cpp — opens NCCL's library at run time; compiled if nccl.h is
// found. The library is not linked.
#include <cstdlib>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>
#include <nccl.h>

#include "actors/collectives/nccl/nccl_api.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

// ---- what we wrote down against what NCCL's header says ----
constexpr bool same_number(auto ours, auto theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}
static_assert(same_number(NcclResult::kSuccess, ncclSuccess) &&
              same_number(NcclResult::kCudaError, ncclUnhandledCudaError) &&
              same_number(NcclResult::kSystemError, ncclSystemError) &&
              same_number(NcclResult::kInternalError, ncclInternalError) &&
              same_number(NcclResult::kInvalidArgument, ncclInvalidArgument) &&
              same_number(NcclResult::kInvalidUsage, ncclInvalidUsage) &&
              same_number(NcclResult::kRemoteError, ncclRemoteError) &&
              same_number(NcclResult::kInProgress, ncclInProgress));
static_assert(same_number(NcclType::kBytes, ncclUint8) &&
              same_number(NcclType::kF16, ncclFloat16) &&
              same_number(NcclType::kF32, ncclFloat32) &&
              same_number(NcclType::kBF16, ncclBfloat16) && same_number(NcclOp::kSum, ncclSum));

#define TANDEM_SAME_PLACE(ours, theirs) \
  static_assert(offsetof(NcclConfig, ours) == offsetof(ncclConfig_t, theirs))
TANDEM_SAME_PLACE(size, size);
TANDEM_SAME_PLACE(magic, magic);
TANDEM_SAME_PLACE(version, version);
TANDEM_SAME_PLACE(blocking, blocking);
TANDEM_SAME_PLACE(cga_cluster_size, cgaClusterSize);
TANDEM_SAME_PLACE(min_ctas, minCTAs);
TANDEM_SAME_PLACE(max_ctas, maxCTAs);
TANDEM_SAME_PLACE(net_name, netName);
TANDEM_SAME_PLACE(split_share, splitShare);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
TANDEM_SAME_PLACE(traffic_class, trafficClass);
TANDEM_SAME_PLACE(name, commName);
TANDEM_SAME_PLACE(collnet_enable, collnetEnable);
TANDEM_SAME_PLACE(cta_policy, CTAPolicy);
TANDEM_SAME_PLACE(shrink_share, shrinkShare);
TANDEM_SAME_PLACE(nvls_ctas, nvlsCTAs);
TANDEM_SAME_PLACE(channels_per_net_peer, nChannelsPerNetPeer);
TANDEM_SAME_PLACE(nvlink_centric_sched, nvlinkCentricSched);
#endif
#undef TANDEM_SAME_PLACE
static_assert(NcclConfig::kUnset == NCCL_CONFIG_UNDEF_INT);
static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t) ||
              NCCL_VERSION_CODE < NCCL_VERSION(2, 28, 0));

/// Passed in the same way: pointers, numbers of one size, plain structs of one size.
template <class Ours, class Theirs>
constexpr bool kPassedAlike =
    sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
    ((std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) ||
     ((std::is_integral_v<Ours> || std::is_enum_v<Ours>) &&
      (std::is_integral_v<Theirs> || std::is_enum_v<Theirs>)) ||
     (std::is_class_v<Ours> && std::is_class_v<Theirs> && std::is_trivially_copyable_v<Ours> &&
      std::is_trivially_copyable_v<Theirs>));

template <class R1, class... A1, class R2, class... A2>
constexpr bool called_alike(R1 (*)(A1...), R2 (*)(A2...)) {
  if constexpr (sizeof...(A1) == sizeof...(A2)) {
    return kPassedAlike<R1, R2> && (kPassedAlike<A1, A2> && ...);
  } else {
    return false;
  }
}

#define TANDEM_CALLED_ALIKE(ours, theirs) \
  static_assert(called_alike(decltype(NcclApi::ours)(), static_cast<decltype(&::theirs)>(nullptr)))
TANDEM_CALLED_ALIKE(version, ncclGetVersion);
TANDEM_CALLED_ALIKE(unique_id, ncclGetUniqueId);
TANDEM_CALLED_ALIKE(init_rank, ncclCommInitRankConfig);
TANDEM_CALLED_ALIKE(async_error, ncclCommGetAsyncError);
TANDEM_CALLED_ALIKE(finalize, ncclCommFinalize);
TANDEM_CALLED_ALIKE(destroy, ncclCommDestroy);
TANDEM_CALLED_ALIKE(abort, ncclCommAbort);
TANDEM_CALLED_ALIKE(text_of, ncclGetErrorString);
TANDEM_CALLED_ALIKE(last_error, ncclGetLastError);
TANDEM_CALLED_ALIKE(group_start, ncclGroupStart);
TANDEM_CALLED_ALIKE(group_end, ncclGroupEnd);
TANDEM_CALLED_ALIKE(all_gather, ncclAllGather);
TANDEM_CALLED_ALIKE(broadcast, ncclBroadcast);
TANDEM_CALLED_ALIKE(reduce_scatter, ncclReduceScatter);
TANDEM_CALLED_ALIKE(all_reduce, ncclAllReduce);
TANDEM_CALLED_ALIKE(send, ncclSend);
TANDEM_CALLED_ALIKE(receive, ncclRecv);
#undef TANDEM_CALLED_ALIKE

// ---- the library ----
/// The folder of the LibTorch that this process has loaded; empty: none.
std::string torch_folder() {
  std::string folder;
  (void)::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        const std::string_view path = info->dlpi_name != nullptr ? info->dlpi_name : "";
        const std::size_t slash = path.rfind('/');
        if (slash == std::string_view::npos || path.substr(slash + 1) != "libc10.so") {
          return 0;
        }
        *static_cast<std::string*>(found) = path.substr(0, slash);
        return 1;
      },
      &folder);
  return folder;
}

/// In the order in which they are tried.
std::vector<std::string> places() {
  if (const char* named = std::getenv("TANDEM_NCCL_LIBRARY"); named != nullptr && *named != 0) {
    return {named};
  }
  std::vector<std::string> all;
  if (const std::string torch = torch_folder(); !torch.empty()) {
    all.push_back(torch + "/../../nvidia/nccl/lib/libnccl.so.2");
  }
  all.emplace_back("libnccl.so.2");
  return all;
}

struct Loaded {
  NcclApi api{};
  std::string refusal;  // empty: the table is filled
};

Loaded open_library() {
  // With it NCCL starts the kernels of several communicators in the order of the calls; the back
  // end sees to it that this order is the same on all ranks. Read by the library when it is first
  // used. A value that the user has set stays.
  (void)::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  // A group's exchange is launched by another thread than gathers and reductions, before or behind
  // them as it comes (docs/nccl.md); NCCL takes that for an error.
  (void)::setenv("NCCL_LAUNCH_RACE_FATAL", "0", 0);
  Loaded loaded;
  std::vector<std::string> refusals;
  void* library = nullptr;
  for (const std::string& place : places()) {
    library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      break;
    }
    const char* why = ::dlerror();
    refusals.push_back(fmt::format("{} ({})", place, why != nullptr ? why : "no reason given"));
  }
  if (library == nullptr) {
    loaded.refusal =
        fmt::format("no NCCL library, tried {}; set TANDEM_NCCL_LIBRARY to libnccl.so.2",
                    fmt::join(refusals, ", "));
    return loaded;
  }
  const auto fill = [&](auto& entry, const char* symbol) {
    void* const found = ::dlsym(library, symbol);
    if (found == nullptr && loaded.refusal.empty()) {
      loaded.refusal = fmt::format("the NCCL library has no {}; use 2.18 or newer", symbol);
    }
    entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(found);
  };
  NcclApi& api = loaded.api;
  fill(api.version, "ncclGetVersion");
  fill(api.unique_id, "ncclGetUniqueId");
  fill(api.init_rank, "ncclCommInitRankConfig");
  fill(api.async_error, "ncclCommGetAsyncError");
  fill(api.finalize, "ncclCommFinalize");
  fill(api.destroy, "ncclCommDestroy");
  fill(api.abort, "ncclCommAbort");
  fill(api.text_of, "ncclGetErrorString");
  fill(api.last_error, "ncclGetLastError");
  fill(api.group_start, "ncclGroupStart");
  fill(api.group_end, "ncclGroupEnd");
  fill(api.all_gather, "ncclAllGather");
  fill(api.broadcast, "ncclBroadcast");
  fill(api.reduce_scatter, "ncclReduceScatter");
  fill(api.all_reduce, "ncclAllReduce");
  fill(api.send, "ncclSend");
  fill(api.receive, "ncclRecv");
  return loaded;
}

}  // namespace

const NcclApi& NcclApi::load() {
  static const Loaded loaded = open_library();
  if (!loaded.refusal.empty()) {
    throw failure(ExitCode::kRefused, "nccl", "{}", loaded.refusal);
  }
  return loaded.api;
}

}  // namespace tandem
