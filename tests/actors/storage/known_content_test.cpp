// A file that is something else is told by its first bytes.
#include "actors/storage/known_content.hpp"

#include <string>

#include <gtest/gtest.h>

namespace tandem {
namespace {

using namespace std::string_view_literals;

TEST(KnownContent, KindsAreToldByTheirFirstBytes) {
  for (const auto& [first, means] : {std::pair{"version https://git-lfs.github.com"sv, "Git LFS"sv},
                                     {"\xFF\xFE{\0"sv, "UTF-16"},
                                     {"PK\x03\x04xx"sv, "torch.save()"},
                                     {"PAR1xx"sv, "parquet"}}) {
    EXPECT_NE(known_content(first).find(means), std::string_view::npos) << means;
  }
  for (const std::string_view first : {""sv, " \n"sv, "{\"a\": 1}"sv, "<"sv, "<htm"sv, " PAR1"sv}) {
    EXPECT_EQ(known_content(first), "") << first;
  }
}

TEST(KnownContent, AServersAnswerIsNoFile) {
  for (const auto& [first, means] : {std::pair{"<!DOCTYPE html>"sv, "web page"sv},
                                     {"\r\n \t<!doctype HTML>"sv, "web page"},
                                     {"<HTML><body>"sv, "web page"},
                                     {"  <Head>"sv, "web page"},
                                     {"<?xml version=\"1.0\"?>\n<Error>"sv, "XML"},
                                     {"<Error><Code>AccessDenied"sv, "error message"},
                                     {"{\"error\":\"Repository not found\"}"sv, "error message"},
                                     {"{\"Error\""sv, "error message"}}) {
    const std::string_view found = known_content(first);
    EXPECT_NE(found.find(means), std::string_view::npos) << first;
    EXPECT_NE(found.find("download it again"), std::string_view::npos) << first;
  }
}

}  // namespace
}  // namespace tandem
