#include "tests/support/process/paths.hpp"

namespace tandem::test {

std::string source_dir() { return TANDEM_SOURCE_DIR; }
std::string bin_dir() { return TANDEM_BIN_DIR; }

}  // namespace tandem::test
