// engine/metrics/earlier_files.hpp — what an earlier run left in a folder makes room for the next.
//
// Invariant: nothing is removed, replaced or followed: names move within their disk.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

namespace tandem {

/// Moves the entries of `folder` for whose names `is_earlier` says so into folder/earlier-N, the
/// first N that is free, and returns that; nullopt where there are none. A file called `open`,
/// which a writer holds, is copied instead. Throws std::filesystem::filesystem_error.
std::optional<std::filesystem::path> move_aside(
    const std::filesystem::path& folder,
    const std::function<bool(std::string_view name)>& is_earlier, std::string_view open = {});

/// Makes the folder folder/earlier-N, the first N that is free. Throws likewise.
[[nodiscard]] std::filesystem::path make_earlier(const std::filesystem::path& folder);
/// Renames the entry of that name from one folder into another, where nothing has it. Throws
/// likewise.
void move_entry(const std::filesystem::path& from, const std::filesystem::path& to,
                std::string_view name);

/// The folder of that name lies in both afterwards, its files under two names; where the file
/// system has no hard links it is moved. Throws likewise.
void link_entry(const std::filesystem::path& from, const std::filesystem::path& to,
                std::string_view name);

}  // namespace tandem
