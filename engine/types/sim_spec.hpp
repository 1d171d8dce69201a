// engine/types/sim_spec.hpp — the user's description of the simulated accelerator of `--device
// sim`.
//
//   --sim_spec compute=2T,h2d=50GB,d2h=50GB,hbm=3TB,memory=16GB,latency=10us
//
// A property that is not named keeps its default. Numbers take k, M, G, T, P (powers of 1000),
// memory also Ki, Mi, Gi, Ti (of 1024); B, B/s, FLOP/s and the like may follow. The latency takes
// s, ms, us or ns.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

struct SimSpec {
  double compute_flops_per_s = 100e12;
  double to_device_bytes_per_s = 25e9;
  double to_host_bytes_per_s = 25e9;
  double memory_bytes_per_s = 2e12;  // of the device's own memory, read and written together (hbm)
  double memory_bytes = 16e9;
  double latency_s = 3e-6;  // of each copy and each segment
  bool acts = true;         // not part of the notation: see SimDevice::Options
};

/// Throws user_error, naming the part that is wrong.
[[nodiscard]] SimSpec parse_sim_spec(std::string_view text);

/// Returns all properties, in the notation of parse_sim_spec.
[[nodiscard]] std::string to_string(const SimSpec& spec);

}  // namespace tandem
