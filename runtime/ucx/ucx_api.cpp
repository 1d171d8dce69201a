#include "runtime/ucx/ucx_api.hpp"

#include <cstdlib>

#include <dlfcn.h>

namespace tandem::detail {
namespace {

template <class Call>
void find(void* library, const char* name, Call& call, std::string& problem) {
  call = reinterpret_cast<Call>(::dlsym(library, name));
  if (call == nullptr && problem.empty()) {
    problem = std::string("its library has no ") + name;
  }
}

UcxApi load() {
  UcxApi api;
  constexpr const char* kSettings[][2] = {
      {"UCX_HANDLE_ERRORS", "none"},
      {"UCX_DEBUG_SIGNO", "0"},
      {"UCX_MEM_EVENTS", "n"},
      // Frames below 60 KiB are one segment.
      {"UCX_TCP_TX_SEG_SIZE", "64K"},
      {"UCX_TCP_RX_SEG_SIZE", "64K"},
      // TCP keeps no send that is still to go out of the caller's memory. Where a peer dies in one,
      // uct_tcp_ep_sendv() calls the send's completion, which the purge that it began has called
      // already (UCX 1.12 to 1.20 and on): an assertion ends this process, or memory that is free
      // is written to. Without vectors TCP offers no such sends, to no protocol above it, and
      // copies what the socket does not take.
      {"UCX_TCP_MAX_IOV", "0"},
      // A frame goes by one buffer that UCX has just filled: the kernel copies out of that faster
      // than out of the caller's memory, by more than the copy into it costs.
      {"UCX_TCP_SENDV_THRESH", "inf"},
      // Else it blocks for minutes where a firewall drops packets.
      {"UCX_TCP_CONN_NB", "y"},
  };
  for (const auto& [name, value] : kSettings) {
    ::setenv(name, value, 0);
  }
  void* library = ::dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    api.problem = ::dlerror();
    return api;
  }
  std::string& problem = api.problem;
  find(library, "ucp_get_version_string", api.get_version_string, problem);
  find(library, "ucs_status_string", api.status_string, problem);
  find(library, "ucp_config_read", api.config_read, problem);
  find(library, "ucp_config_modify", api.config_modify, problem);
  find(library, "ucp_config_release", api.config_release, problem);
  find(library, "ucp_init_version", api.init_version, problem);
  find(library, "ucp_cleanup", api.cleanup, problem);
  find(library, "ucp_worker_create", api.worker_create, problem);
  find(library, "ucp_worker_destroy", api.worker_destroy, problem);
  find(library, "ucp_worker_get_address", api.worker_get_address, problem);
  find(library, "ucp_worker_release_address", api.worker_release_address, problem);
  find(library, "ucp_worker_get_efd", api.worker_get_efd, problem);
  find(library, "ucp_worker_arm", api.worker_arm, problem);
  find(library, "ucp_worker_progress", api.worker_progress, problem);
  find(library, "ucp_ep_create", api.ep_create, problem);
  find(library, "ucp_ep_close_nbx", api.ep_close_nbx, problem);
  find(library, "ucp_tag_send_nbx", api.tag_send_nbx, problem);
  find(library, "ucp_tag_probe_nb", api.tag_probe_nb, problem);
  find(library, "ucp_tag_msg_recv_nbx", api.tag_msg_recv_nbx, problem);
  find(library, "ucp_tag_recv_nbx", api.tag_recv_nbx, problem);
  find(library, "ucp_request_cancel", api.request_cancel, problem);
  find(library, "ucp_request_free", api.request_free, problem);
  find(library, "ucp_mem_map", api.mem_map, problem);
  find(library, "ucp_mem_unmap", api.mem_unmap, problem);
  return api;
}

}  // namespace

const UcxApi& ucx() {
  static const UcxApi api = load();
  return api;
}

}  // namespace tandem::detail
