// runtime/testing/gtest.hpp — the test kit as a GoogleTest fixture: a sentence that does not hold
// fails the test at its line. Header only; needs GoogleTest, the library does not.
//
//   struct BookTest : TestKitFixture {};
//   TEST_F(BookTest, TakesNotes) {
//     auto& book = kit.make<Book>();
//     ...
//     kit.expect<Note>().to(book);
//   }
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "runtime/testing/test_kit.hpp"

namespace tandem {

class TestKitFixture : public ::testing::Test {
 protected:
  TestKitFixture() {
    kit.set_failure_handler([](const std::string& text, const TestKit::Where& where) {
      ADD_FAILURE_AT(where.file_name(), static_cast<int>(where.line())) << text;
    });
  }
  TestKit kit;
};

}  // namespace tandem
