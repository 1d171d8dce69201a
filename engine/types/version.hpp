// engine/types/version.hpp — the version of Tandem.
#pragma once

namespace tandem {

/// "0.1.0"
[[nodiscard]] const char* version() noexcept;

}  // namespace tandem
