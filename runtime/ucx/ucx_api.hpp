// runtime/ucx/ucx_api.hpp — UCX's calls, from its library, which is loaded when they are first
// asked for.
//
// The library is loaded and not linked: while it is being loaded, UCX takes over the signals of
// crashes and patches libc's mmap, in every program that is linked with it. Here it is told not to,
// by environment variables that it reads then. It therefore does not see memory come and go; memory
// that it should keep registered is registered by hand.
// Thread rule: any thread; the first call sets variables of the environment, so no other thread may
// read them meanwhile.
#pragma once

#include <string>

#include <ucp/api/ucp.h>

namespace tandem::detail {

struct UcxApi {
  decltype(&::ucp_get_version_string) get_version_string = nullptr;
  decltype(&::ucs_status_string) status_string = nullptr;
  decltype(&::ucp_config_read) config_read = nullptr;
  decltype(&::ucp_config_modify) config_modify = nullptr;
  decltype(&::ucp_config_release) config_release = nullptr;
  decltype(&::ucp_init_version) init_version = nullptr;
  decltype(&::ucp_cleanup) cleanup = nullptr;
  decltype(&::ucp_worker_create) worker_create = nullptr;
  decltype(&::ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&::ucp_worker_get_address) worker_get_address = nullptr;
  decltype(&::ucp_worker_release_address) worker_release_address = nullptr;
  decltype(&::ucp_worker_get_efd) worker_get_efd = nullptr;
  decltype(&::ucp_worker_arm) worker_arm = nullptr;
  decltype(&::ucp_worker_progress) worker_progress = nullptr;
  decltype(&::ucp_ep_create) ep_create = nullptr;
  decltype(&::ucp_ep_close_nbx) ep_close_nbx = nullptr;
  decltype(&::ucp_tag_send_nbx) tag_send_nbx = nullptr;
  decltype(&::ucp_tag_probe_nb) tag_probe_nb = nullptr;
  decltype(&::ucp_tag_msg_recv_nbx) tag_msg_recv_nbx = nullptr;
  decltype(&::ucp_tag_recv_nbx) tag_recv_nbx = nullptr;
  decltype(&::ucp_request_cancel) request_cancel = nullptr;
  decltype(&::ucp_request_free) request_free = nullptr;
  decltype(&::ucp_mem_map) mem_map = nullptr;
  decltype(&::ucp_mem_unmap) mem_unmap = nullptr;

  std::string problem;  // why the calls cannot be made; empty: they can
};

[[nodiscard]] const UcxApi& ucx();

}  // namespace tandem::detail
