// bench/net/collectives_rank.hpp — one of two ranks on hosts of their own, for tools/bench/net.py:
// it runs the collectives that it reads of.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::bench {

/// Writes its address, in hex, and reads both ranks'. Then for each line "OPERATION BYTES TIMES" on
/// standard input it writes the seconds that these took here; ends with the input. `device`: a
/// network interface. Returns an exit code.
int run_collectives_rank(std::uint32_t rank, const std::string& device);

}  // namespace tandem::bench
