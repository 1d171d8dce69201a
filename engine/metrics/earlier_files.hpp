// engine/metrics/earlier_files.hpp — moves the files of an earlier run aside before the next run
// writes.
//
// Invariant: no file is removed or replaced and no link is followed: names move within their disk.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

namespace tandem {

/// Moves the entries of `folder` whose names satisfy `is_earlier` into folder/earlier-N, with the
/// first free N, and returns that folder; nullopt if there are none. The file called `open`, which
/// a writer has open, is copied instead. Throws std::filesystem::filesystem_error.
std::optional<std::filesystem::path> move_aside(
    const std::filesystem::path& folder,
    const std::function<bool(std::string_view name)>& is_earlier, std::string_view open = {});

/// Makes the folder folder/earlier-N, the first N that is free. Throws likewise.
[[nodiscard]] std::filesystem::path make_earlier(const std::filesystem::path& folder);
/// Renames the entry of that name from one folder into another, which must not have the name.
/// Throws likewise.
void move_entry(const std::filesystem::path& from, const std::filesystem::path& to,
                std::string_view name);

/// Makes a copy of the folder of that name from hard links; if the file system has none, moves the
/// folder. Throws likewise.
void link_entry(const std::filesystem::path& from, const std::filesystem::path& to,
                std::string_view name);

}  // namespace tandem
