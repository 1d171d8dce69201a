// docs/model_keys.md is made of the lists that read config.json; tests/tools/model_keys_test.py
// compares it with Transformers.
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "models/causal_lm.hpp"
#include "models/families/family.hpp"
#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

TEST(ModelKeys, ThePageIsTheLists) {
  const std::string path = TANDEM_SOURCE_DIR "/docs/model_keys.md";
  const std::string page = model_keys_page(known_families());
  if (std::getenv("TANDEM_UPDATE_DOCS") != nullptr) {
    test::put(path, page);
  }
  EXPECT_EQ(test::get(path), page) << "TANDEM_UPDATE_DOCS=1 writes it anew";
}

}  // namespace
}  // namespace tandem
