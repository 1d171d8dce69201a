#include "engine/exchange/exchange_tensor.hpp"

#include <cstddef>

#include <ATen/ops/empty.h>

namespace tandem {

at::Tensor exchange_tensor(RankExchange& exchange, at::Tensor pieces) {
  const at::Device home = pieces.device();
  const bool on_device = exchange.device() == home;
  pieces = (on_device ? pieces : pieces.to(at::kCPU)).contiguous();
  const at::Tensor into = at::empty(pieces.sizes(), pieces.options());
  // The memory is LibTorch's: only the tensor's device says where it lies.
  const Place place = on_device ? Place::kDevice : Place::kHost;
  exchange.all_to_all({place, static_cast<const std::byte*>(pieces.const_data_ptr())},
                      {place, static_cast<std::byte*>(into.data_ptr())},
                      pieces.nbytes() / static_cast<std::size_t>(exchange.ranks()));
  pieces.reset();
  return into.to(home);
}

}  // namespace tandem
