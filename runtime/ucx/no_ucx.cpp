// Built instead of the other files of this folder where libucx-dev is not installed.
#include "runtime/ucx/ucx_net.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

const UcxSupport& ucx_support() {
  static const UcxSupport support{.usable = false, .what = "built without UCX"};
  return support;
}

std::unique_ptr<NetBackend> connect_ucx_net(EventLoop& /*loop*/, const UcxNetOptions& /*options*/,
                                            const ExchangeAddresses& /*exchange*/) {
  throw failure(ExitCode::kFailure, "net", "UCX is not usable: {}; install libucx-dev and build",
                ucx_support().what);
}

}  // namespace tandem
