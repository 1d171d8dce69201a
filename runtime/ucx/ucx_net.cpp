#include "runtime/ucx/ucx_net.hpp"

#include <fmt/format.h>

#include "runtime/ucx/ucx_backend.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

const UcxSupport& ucx_support() {
  static const UcxSupport support = [] {
    const detail::UcxApi& api = detail::ucx();
    return api.problem.empty()
               ? UcxSupport{.usable = true, .what = fmt::format("UCX {}", api.get_version_string())}
               : UcxSupport{.usable = false, .what = api.problem};
  }();
  return support;
}

std::unique_ptr<NetBackend> connect_ucx_net(EventLoop& loop, const UcxNetOptions& options,
                                            const ExchangeAddresses& exchange) {
  TANDEM_CHECK(options.rank < options.world && options.world <= detail::UcxTag::kRanksMax,
               "a rank of the world, which fits the tag");
  TANDEM_CHECK(options.window_frames >= 2 && options.window_frames % 2 == 0,
               "half a window is a credit");
  if (!ucx_support().usable) {
    throw failure(ExitCode::kFailure, "net", "UCX is not usable: {}; install libucx0",
                  ucx_support().what);
  }
  auto net = std::make_unique<detail::UcxBackend>(loop, options);
  net->connect(exchange(net->address()));
  return net;
}

}  // namespace tandem
