// runtime/system/remove_tree.hpp — removes a file or a folder with all that lies in it, and nothing
// else.
//
// Everything is reached by the descriptor of the folder that it lies in. A link is removed itself
// and never followed, and what is mounted within the folder is not entered. Links on the way to the
// folder that holds `path` are followed, except within an own folder (reach.hpp).
#pragma once

#include <cstdint>
#include <string>

namespace tandem {

/// Returns 0 if nothing of that name is left, else -1 with the first failure in errno; everything
/// that could be removed is gone. Blocks. Any thread.
[[nodiscard]] std::int64_t remove_tree(const std::string& path) noexcept;

}  // namespace tandem
