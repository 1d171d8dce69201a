// runtime/ucx/ucx_worker.hpp — UCX's context and worker: its settings, its descriptor, its
// endpoints, memory that is registered.
//
// It knows nothing of ranks or coroutines. Only ucx_*.cpp include it, so that it is not compiled
// where UCX is missing. Every request that UCX makes is freed by its callback. A large frame's
// memory is registered while the frame moves, unless register_memory() has done so for longer: UCX
// 1.16 to 1.21 end the process if a peer dies while UCX moves a frame that UCX has registered
// itself, because a process without UCX's hooks has no cache of registrations.
// Thread rule: the thread that made it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/ucx/ucx_api.hpp"

namespace tandem::detail {

/// Each request of UCX holds one in its memory.
struct UcxRequest {
  void* op;          // the back end's, which sets it
  ucp_mem_h memory;  // the frame's memory, registered for this request; null: there is none
};

class UcxWorker {
 public:
  /// `devices` has the form of UCX_NET_DEVICES, and that variable takes precedence over it; empty
  /// means all. Throws an Error.
  explicit UcxWorker(const std::string& devices);
  /// All of its endpoints must be closed.
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  /// The address that connect() of another worker needs.
  [[nodiscard]] std::string address() const;
  /// Makes an endpoint to the worker at `address`. progress() calls `on_error`, once at most.
  /// Throws an Error.
  [[nodiscard]] ucp_ep_h connect(const std::string& address, ucp_err_handler_cb_t on_error,
                                 void* argument);
  /// Closes the endpoint and gives up the operations that are on their way. The endpoint may not be
  /// used any more.
  void close_by_force(ucp_ep_h endpoint) noexcept;
  [[nodiscard]] bool is_closing() const noexcept { return closing_ > 0; }

  /// Advances the operations that are under way, and calls callbacks; returns false if there was
  /// nothing to do.
  bool progress() noexcept { return ucx().worker_progress(worker_) != 0; }
  /// Makes the descriptor readable once there is something to do; returns false if there is
  /// already.
  [[nodiscard]] bool arm() noexcept;
  [[nodiscard]] int event_descriptor() const noexcept { return event_; }
  /// Blocks until there is something to do, or `timeout_ms` have passed.
  void wait(int timeout_ms) noexcept;

  /// Returns the next message that came, whatever its tag; null if there is none. Messages of one
  /// sender come in order.
  [[nodiscard]] ucp_tag_message_h next_message(ucp_tag_recv_info_t& info) noexcept {
    return ucx().tag_probe_nb(worker_, 0, 0, 1, &info);
  }
  /// Returns what UCX returns: null if the send is complete, an error, or a request, for which UCX
  /// will call the callback; at a request lies a UcxRequest.
  [[nodiscard]] ucs_status_ptr_t send(ucp_ep_h endpoint, std::span<const std::byte> bytes,
                                      ucp_tag_t tag, ucp_send_nbx_callback_t on_sent,
                                      void* user) noexcept;
  [[nodiscard]] ucs_status_ptr_t receive(ucp_tag_message_h message, std::span<std::byte> into,
                                         ucp_tag_recv_nbx_callback_t on_received,
                                         void* user) noexcept;
  /// Receives the next message with this tag that next_message() has not given out, straight into
  /// `into` when it comes. If it is here already and no callback comes, `info` describes it.
  [[nodiscard]] ucs_status_ptr_t receive_next(ucp_tag_t tag, std::span<std::byte> into,
                                              ucp_tag_recv_info_t& info,
                                              ucp_tag_recv_nbx_callback_t on_received,
                                              void* user) noexcept;
  /// Cancels a receive_next(): its callback comes out of this call, with UCS_ERR_CANCELED, unless a
  /// message moves already.
  void cancel(void* request) noexcept { ucx().request_cancel(worker_, request); }
  void drop(ucp_tag_message_h message) noexcept;
  /// Frees a request in its callback, and registers its frame's memory no longer.
  void free(void* request) noexcept;

  /// Registers `memory` until the worker's end, which the memory must outlive. Throws an Error.
  void register_memory(std::span<std::byte> memory);

 private:
  struct ContextDeleter {
    void operator()(ucp_context_h context) const noexcept { ucx().cleanup(context); }
  };
  struct Region {
    std::span<std::byte> memory;
    ucp_mem_h handle;
  };
  struct Operation {
    ucp_request_param_t parameters;
    ucp_mem_h memory;  // registered for the operation alone, or null
  };
  [[nodiscard]] ucs_status_t map(std::span<const std::byte> memory,
                                 ucp_mem_h& handle) const noexcept;
  [[nodiscard]] Operation operation_on(std::span<const std::byte> frame, void* user) const noexcept;
  // Returns `request`, and keeps `memory` registered for as long as there is one.
  [[nodiscard]] ucs_status_ptr_t keep(ucs_status_ptr_t request, ucp_mem_h memory) noexcept;

  std::unique_ptr<ucp_context, ContextDeleter> context_;
  ucp_worker_h worker_ = nullptr;
  int event_ = -1;
  int closing_ = 0;
  std::vector<Region> regions_;
};

}  // namespace tandem::detail
