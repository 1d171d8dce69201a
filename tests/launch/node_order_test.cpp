// A node refuses any text that is no order, and names the fault.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/process/paths.hpp"
#include "tests/support/throws_error.hpp"
#include "tools/launch/node_link.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

NodeOrder an_order() {
  NodeOrder order;
  order.host = "a";
  order.places = {.here = 2, .world = 4, .host = 1, .hosts = 2, .address = "127.0.0.1"};
  order.places.secret = std::string(64, 'f');
  order.settings.command = {"/bin/echo", "two\nlines \\ and"};
  order.directory = "/";
  order.variables = {"A=b=c", "B="};
  return order;
}

std::string body_of(const NodeOrder& order) {
  const std::string text = encode(order, "key");
  return text.substr(text.find('\n') + 1);
}

TEST(NodeOrderText, ComesThrough) {
  const NodeOrder order = decode(body_of(an_order()));
  EXPECT_EQ(order.settings.command, an_order().settings.command);
  EXPECT_EQ(order.variables, an_order().variables);
  EXPECT_EQ(order.places.world, 4);
  EXPECT_EQ(order.places.secret, an_order().places.secret);
}

TEST(NodeOrderText, WhatNoLaunchGivesIsRefused) {
  const auto with = [](auto change) {
    NodeOrder order = an_order();
    change(order);
    return body_of(order);
  };
  const std::string whole = body_of(an_order());
  const std::pair<std::string, std::string> bad[] = {
      {"", "ends too early"},
      {whole.substr(0, whole.size() - 1), "ends too early"},
      {whole + "more\n", "goes on behind its end, by 5 bytes"},
      {with([](NodeOrder& o) { o.settings.command.clear(); }), "words of the command: 0"},
      {with([](NodeOrder& o) { o.places.here = 0; }), "ranks here: 0"},
      {with([](NodeOrder& o) { o.places.here = -5; }), "ranks here: -5"},
      {with([](NodeOrder& o) { o.places.here = 1'000'000; }), "ranks here: 1000000"},
      {with([](NodeOrder& o) { o.places.world = INT_MAX; }), "ranks of all hosts: 2147483647"},
      {with([](NodeOrder& o) { o.places.first = 3; }), "the first rank 3"},
      {with([](NodeOrder& o) { o.places.host = 2; }), "the host's number 2"},
      {with([](NodeOrder& o) { o.places.port = 70'000; }), "the port 70000"},
      {with([](NodeOrder& o) { o.places.restart = 1; }), "the restart 1"},
      {with([](NodeOrder& o) { o.variables = {"=x"}; }), "\"=x\" for a variable"},
      {with([](NodeOrder& o) { o.variables = {"x"}; }), "\"x\" for a variable"},
      {with([](NodeOrder& o) { o.directory.push_back('\0'); }), "a zero byte"},
      {"h\n\nx", "ends too early"},
      {"h\n\nx\n", "\"x\" for a number"},
      {"h\n\n99999999999\n", "\"99999999999\" for a number"}};
  for (const auto& [text, why] : bad) {
    EXPECT_THAT(error_text([&] { (void)decode(text); }), HasSubstr(why));
  }
  // A list of -1, or of more than there are.
  for (const char* count : {"-1", "4294967295", "18446744073709551615", "9"}) {
    const std::string text =
        whole.substr(0, whole.rfind("2\n/bin/echo")) + count + "\n/bin/echo\nx\n";
    EXPECT_THAT(error_text([&] { (void)decode(text); }), HasSubstr("the order of this host"));
  }
}

TEST(NodeOrderText, ANodeEndsWithTheUsersError) {
  const std::string path = fmt::format("{}/order.{}", ::testing::TempDir(), ::getpid());
  NodeOrder no_command = an_order();
  no_command.settings.command.clear();
  for (const std::string& text :
       {encode(no_command, "k"), std::string("tandem launch 3\nh\n"), std::string(200'000, 'x'),
        std::string("tandem launch 4 k 99999999999\n"), std::string("tandem launch 4 k -1\n"),
        std::string("\n")}) {
    std::ofstream(path) << text;
    const int status = std::system(
        fmt::format("{}/launch_alone launch --node < '{}' > '{}.out'", test::bin_dir(), path, path)
            .c_str());
    EXPECT_EQ(WEXITSTATUS(status), 2) << text.substr(0, 40);
    std::string said;
    std::getline(std::ifstream(path + ".out"), said);
    EXPECT_THAT(said, HasSubstr("refused 2 [launch] "));
  }
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".out");
}

}  // namespace
}  // namespace tandem
