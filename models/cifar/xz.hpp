// models/cifar/xz.hpp — bytes of an .xz file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

/// Returns the unpacked bytes of `packed`. Throws user_error (`where`, `name`) if it is damaged,
/// cut short, followed by something else, or larger than `limit_bytes` unpacked. Any thread.
std::string unpack_xz(std::string_view packed, std::string_view name, std::string_view where,
                      std::uint64_t limit_bytes);

}  // namespace tandem
