// engine/distributed/hello.hpp — the first message of a rank: its host, version and world size. So
// ranks that cannot work together can name each other and their hosts. Any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

/// The hello of this process, in a run of `world` ranks.
[[nodiscard]] std::string own_hello(int world);

/// Throws Error(kPeer) if the other rank has another world size or another version of Tandem.
void require_fit(std::size_t rank, std::string_view mine, std::size_t other,
                 std::string_view others);

/// Returns the host in a hello: equal for processes that can share memory. Its last word is the
/// host's name.
[[nodiscard]] std::string_view host_of(std::string_view hello);
/// Returns "rank 3", or "rank 3 (on host b)" if `hosts` (by rank) has several hosts.
[[nodiscard]] std::string rank_on_host(std::size_t rank, std::span<const std::string> hosts);

/// [rank] its host's name; hosts of one name are told apart: "b", "b#2", in the order of ranks.
[[nodiscard]] std::vector<std::string> distinct_names(std::span<const std::string> hosts);

/// The name that people call a host by.
[[nodiscard]] std::string_view name_of_host(std::string_view host) noexcept;

}  // namespace tandem
