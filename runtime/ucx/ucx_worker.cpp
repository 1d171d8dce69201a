#include "runtime/ucx/ucx_worker.hpp"

#include <algorithm>
#include <cstdlib>

#include <poll.h>

#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem::detail {
namespace {

// UCX copies smaller frames, and moves these out of their memory and into it.
constexpr std::size_t kMovedBytes = 61'440;

void expect_ok(ucs_status_t status, std::string_view what) {
  if (status != UCS_OK) {
    throw failure(ExitCode::kFailure, "net", "UCX: {}: {}", what, ucx().status_string(status));
  }
}

struct Config {
  Config() { expect_ok(ucx().config_read(nullptr, nullptr, &config), "its settings"); }
  ~Config() { ucx().config_release(config); }
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;
  // A value in the environment takes precedence.
  void suggest(const char* name, const std::string& value) const {
    const std::string variable = std::string("UCX_") + name;
    if (std::getenv(variable.c_str()) == nullptr) {
      expect_ok(ucx().config_modify(config, name, value.c_str()), variable + "=" + value);
    }
  }
  ucp_config_t* config = nullptr;
};

ucp_context* make_context(const std::string& devices) {
  const Config config;
  // Shared memory's transports do not tell that a peer is gone.
  config.suggest("TLS", "^sm");
  // One fragment is copied, more are not: UCX ends a frame that is moved when its sender dies, and
  // would wait for a missing fragment of one that is copied. A TCP segment (64 KiB, ucx_api.cpp)
  // takes that much with its headers; what another transport cannot send as one fragment it moves.
  config.suggest("RNDV_THRESH", std::to_string(kMovedBytes));
  if (!devices.empty()) {
    config.suggest("NET_DEVICES", devices);
  }
  ucp_params_t parameters{};
  parameters.field_mask =
      UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME | UCP_PARAM_FIELD_REQUEST_SIZE;
  parameters.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  parameters.name = "tandem";
  parameters.request_size = sizeof(UcxRequest);
  ucp_context_h context = nullptr;
  expect_ok(ucx().init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, config.config, &context),
            "no transport can be used");
  return context;
}

}  // namespace

UcxWorker::UcxWorker(const std::string& devices) : context_(make_context(devices)) {
  ucp_worker_params_t parameters{};
  parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  parameters.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  expect_ok(ucx().worker_create(context_.get(), &parameters, &worker_), "no worker");
  const ucs_status_t status = ucx().worker_get_efd(worker_, &event_);
  if (status != UCS_OK) {
    ucx().worker_destroy(worker_);
    expect_ok(status, "no descriptor to wait at");
  }
}

UcxWorker::~UcxWorker() {
  for (const Region& region : regions_) {
    ucx().mem_unmap(context_.get(), region.handle);
  }
  ucx().worker_destroy(worker_);
}

std::string UcxWorker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  expect_ok(ucx().worker_get_address(worker_, &address, &bytes), "no address");
  std::string copy(reinterpret_cast<const char*>(address), bytes);
  ucx().worker_release_address(worker_, address);
  return copy;
}

ucp_ep_h UcxWorker::connect(const std::string& address, ucp_err_handler_cb_t on_error,
                            void* argument) {
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(address.data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler = {.cb = on_error, .arg = argument};
  ucp_ep_h endpoint = nullptr;
  expect_ok(ucx().ep_create(worker_, &parameters, &endpoint), "no transport reaches the peer");
  return endpoint;
}

void UcxWorker::close_by_force(ucp_ep_h endpoint) noexcept {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
  parameters.cb.send = [](void* request, ucs_status_t /*status*/, void* user) {
    --static_cast<UcxWorker*>(user)->closing_;
    ucx().request_free(request);
  };
  parameters.user_data = this;
  ++closing_;
  const ucs_status_ptr_t request = ucx().ep_close_nbx(endpoint, &parameters);
  if (!UCS_PTR_IS_PTR(request)) {
    --closing_;
  }
}

bool UcxWorker::arm() noexcept {
  const ucs_status_t status = ucx().worker_arm(worker_);
  TANDEM_CHECK(status == UCS_OK || status == UCS_ERR_BUSY,
               "a worker with a descriptor can be armed");
  return status == UCS_OK;
}

void UcxWorker::wait(int timeout_ms) noexcept {
  if (arm()) {
    pollfd descriptor{.fd = event_, .events = POLLIN, .revents = 0};
    static_cast<void>(::poll(&descriptor, 1, timeout_ms));
  }
}

ucs_status_ptr_t UcxWorker::send(ucp_ep_h endpoint, std::span<const std::byte> bytes, ucp_tag_t tag,
                                 ucp_send_nbx_callback_t on_sent, void* user) noexcept {
  Operation send = operation_on(bytes, user);
  send.parameters.cb.send = on_sent;
  return keep(ucx().tag_send_nbx(endpoint, bytes.data(), bytes.size(), tag, &send.parameters),
              send.memory);
}

ucs_status_ptr_t UcxWorker::receive(ucp_tag_message_h message, std::span<std::byte> into,
                                    ucp_tag_recv_nbx_callback_t on_received, void* user) noexcept {
  Operation receive = operation_on(into, user);
  receive.parameters.cb.recv = on_received;
  return keep(
      ucx().tag_msg_recv_nbx(worker_, into.data(), into.size(), message, &receive.parameters),
      receive.memory);
}

ucs_status_ptr_t UcxWorker::receive_next(ucp_tag_t tag, std::span<std::byte> into,
                                         ucp_tag_recv_info_t& info,
                                         ucp_tag_recv_nbx_callback_t on_received,
                                         void* user) noexcept {
  Operation receive = operation_on(into, user);
  receive.parameters.op_attr_mask |= UCP_OP_ATTR_FIELD_RECV_INFO;
  receive.parameters.recv_info.tag_info = &info;
  receive.parameters.cb.recv = on_received;
  return keep(ucx().tag_recv_nbx(worker_, into.data(), into.size(), tag, ~ucp_tag_t{0},
                                 &receive.parameters),
              receive.memory);
}

void UcxWorker::drop(ucp_tag_message_h message) noexcept {
  static_cast<void>(receive(
      message, {},
      [](void* request, ucs_status_t /*status*/, const ucp_tag_recv_info_t* /*info*/,
         void* /*user*/) { ucx().request_free(request); },
      nullptr));
}

void UcxWorker::free(void* request) noexcept {
  if (ucp_mem_h memory = static_cast<UcxRequest*>(request)->memory; memory != nullptr) {
    ucx().mem_unmap(context_.get(), memory);
  }
  ucx().request_free(request);
}

ucs_status_ptr_t UcxWorker::keep(ucs_status_ptr_t request, ucp_mem_h memory) noexcept {
  if (UCS_PTR_IS_PTR(request)) {
    static_cast<UcxRequest*>(request)->memory = memory;
  } else if (memory != nullptr) {
    ucx().mem_unmap(context_.get(), memory);
  }
  return request;
}

ucs_status_t UcxWorker::map(std::span<const std::byte> memory, ucp_mem_h& handle) const noexcept {
  ucp_mem_map_params_t parameters{};
  parameters.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  parameters.address = const_cast<std::byte*>(memory.data());
  parameters.length = memory.size();
  return ucx().mem_map(context_.get(), &parameters, &handle);
}

void UcxWorker::register_memory(std::span<std::byte> memory) {
  ucp_mem_h handle = nullptr;
  expect_ok(map(memory, handle),
            fmt::format("{} bytes cannot be registered; raise `ulimit -l`", memory.size()));
  regions_.push_back({memory, handle});
}

// Without the callback. UCX itself registers the memory, or does without, where that fails here.
UcxWorker::Operation UcxWorker::operation_on(std::span<const std::byte> frame,
                                             void* user) const noexcept {
  Operation operation{};
  ucp_request_param_t& parameters = operation.parameters;
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.user_data = user;
  const auto holds_frame = [&](const Region& region) {
    const std::byte* begin = region.memory.data();
    return frame.data() >= begin && frame.data() + frame.size() <= begin + region.memory.size();
  };
  if (const auto region = std::ranges::find_if(regions_, holds_frame);
      !frame.empty() && region != regions_.end()) {
    parameters.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    parameters.memh = region->handle;
  } else if (frame.size() >= kMovedBytes && map(frame, operation.memory) == UCS_OK) {
    parameters.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    parameters.memh = operation.memory;
  }
  return operation;
}

}  // namespace tandem::detail
