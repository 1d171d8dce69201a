// engine/types/nvme_options.hpp — options of the file of optimizer state and weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace tandem {

struct NvmeOptions {
  std::string path;       // an existing folder; each rank makes its file there
  bool overflow = false;  // Placement::kAuto: what the host's memory does not hold goes there
  bool any_disk = false;  // allow a folder in memory or on the network
  // Elements of a rank's weights that stay in host memory, from the first unit on; the other
  // weights lie in the file, with their gradients and state. Absent: all weights stay.
  std::optional<std::int64_t> weights_in_memory;
  // The config's aio block.
  std::size_t block_bytes = std::size_t{1} << 20;  // of a call
  unsigned queue_depth = 8;                        // calls under way
  int threads = 1;                                 // that read and write, without io_uring
};

}  // namespace tandem
