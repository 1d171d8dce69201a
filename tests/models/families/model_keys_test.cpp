// docs/model_keys.md and docs/folder_keys.md are made of the lists that read a model's files;
// tests/tools/model_keys_test.py compares them with Transformers and PEFT.
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "models/causal_lm.hpp"
#include "models/families/family.hpp"
#include "models/io/folder_members.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

void expect_page(const std::string& name, const std::string& page) {
  const std::string path = test::source_path("docs/") + name;
  if (std::getenv("TANDEM_UPDATE_DOCS") != nullptr) {
    test::put(path, page);
  }
  EXPECT_EQ(test::get(path), page) << "TANDEM_UPDATE_DOCS=1 writes it anew";
}

TEST(ModelKeys, ThePageIsTheLists) {
  expect_page("model_keys.md", model_keys_page(known_families()));
}

TEST(ModelKeys, ThePageOfOtherFilesIsTheirLists) {
  expect_page("folder_keys.md", folder_keys_page());
}

}  // namespace
}  // namespace tandem
