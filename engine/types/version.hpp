// engine/types/version.hpp — which Tandem this is.
#pragma once

namespace tandem {

/// "0.1.0"
[[nodiscard]] const char* version() noexcept;

}  // namespace tandem
