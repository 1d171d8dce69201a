// runtime/system/user_cache.hpp — the folder for files that can be made again, kept for this user's
// next runs.
#pragma once

#include <filesystem>

namespace tandem {

/// Returns $TANDEM_CACHE, else $XDG_CACHE_HOME/tandem, else ~/.cache/tandem (the last two only if
/// absolute); empty if none is set. Does not make the folder. Reads the environment: any thread,
/// while no thread changes it.
[[nodiscard]] std::filesystem::path user_cache_folder();

}  // namespace tandem
