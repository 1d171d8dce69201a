#include "engine/types/version.hpp"

namespace tandem {

const char* version() noexcept { return TANDEM_VERSION; }

}  // namespace tandem
