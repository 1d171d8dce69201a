// tests/support/process/main.cpp — main() of the GoogleTest binaries: folders of their own, then
// the tests.
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/process/own_folder.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  std::optional<tandem::test::OwnFolder> folder;
  if (!GTEST_FLAG_GET(list_tests)) {
    folder.emplace();
  }
  return RUN_ALL_TESTS();
}
