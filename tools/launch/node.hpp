// tools/launch/node.hpp — one host's part of a launch on several hosts: what ssh starts there.
#pragma once

namespace tandem {

/// Does what the order on standard input says (node_link.hpp), by the same launcher that starts the
/// ranks of one host. Returns the exit code.
[[nodiscard]] int run_node();

}  // namespace tandem
