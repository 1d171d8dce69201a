// engine/metrics/earlier_files.hpp — what an earlier run left in a folder makes room for the next.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

namespace tandem {

/// Moves the files of `folder` for whose names `is_earlier` says so into folder/earlier-N, the
/// first N that is free, and returns that; nullopt where there are none. A file called `open`,
/// which a writer holds, is copied instead. Throws std::filesystem::filesystem_error.
std::optional<std::filesystem::path> move_aside(
    const std::filesystem::path& folder,
    const std::function<bool(std::string_view name)>& is_earlier, std::string_view open = {});

}  // namespace tandem
