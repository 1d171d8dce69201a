// runtime/system/user_cache.hpp — where what can be made again is kept for this user's next runs.
#pragma once

#include <filesystem>

namespace tandem {

/// $TANDEM_CACHE, else $XDG_CACHE_HOME/tandem, else ~/.cache/tandem, of the last two an absolute
/// one; empty where none is set. Not made here. Reads the environment: any thread, while none
/// changes it.
[[nodiscard]] std::filesystem::path user_cache_folder();

}  // namespace tandem
