// tests/launch/launched.hpp — a launcher under test: its lines, its end, and what is left of it.
#pragma once

#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/process/paths.hpp"

namespace tandem::test {

/// A launcher; its output and errors come through one pipe. A variable marks its processes.
class Launched {
 public:
  explicit Launched(std::vector<std::string> flags, const std::vector<std::string>& command,
                    const std::vector<std::string>& variables = {})
      : Launched(words(flags, command), variables, -1) {}
  /// Any command that becomes a launcher; its output goes to `output`, if that is not -1.
  Launched(std::vector<std::string> arguments, const std::vector<std::string>& variables,
           int output) {
    static int number = 0;
    mark = fmt::format("TANDEM_LAUNCH_TEST={}.{}", ::getpid(), number++);
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    process = ::fork();
    if (process == 0) {
      ::dup2(output >= 0 ? output : ends[1], 1);
      ::dup2(ends[1], 2);
      ::putenv(mark.data());
      for (const std::string& variable : variables) {
        ::putenv(::strdup(variable.c_str()));
      }
      std::vector<char*> raw;
      for (std::string& argument : arguments) {
        raw.push_back(argument.data());
      }
      raw.push_back(nullptr);
      ::execv(raw[0], raw.data());
      ::_exit(99);
    }
    ::close(ends[1]);
    pipe = ends[0];
  }
  ~Launched() { ::close(pipe); }
  Launched(const Launched&) = delete;

  [[nodiscard]] static std::vector<std::string> words(const std::vector<std::string>& flags,
                                                      const std::vector<std::string>& command) {
    std::vector<std::string> all = {test::program_path("launch_alone"), "launch"};
    all.insert(all.end(), flags.begin(), flags.end());
    all.emplace_back("--");
    all.insert(all.end(), command.begin(), command.end());
    return all;
  }

  /// Reads on until `text` has come.
  void wait_for(const std::string& text) {
    while (output.find(text) == std::string::npos && read_more()) {
    }
    ASSERT_THAT(output, ::testing::HasSubstr(text));
  }
  /// The exit code; -signal.
  int wait() {
    while (read_more()) {
    }
    int status = 0;
    EXPECT_EQ(::waitpid(process, &status, 0), process);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }
  /// Living processes that were started below this launcher.
  [[nodiscard]] int left() const {
    int count = 0;
    DIR* folder = ::opendir("/proc");
    while (const dirent* entry = ::readdir(folder)) {
      std::stringstream variables;
      variables << std::ifstream(fmt::format("/proc/{}/environ", entry->d_name)).rdbuf();
      count += variables.str().find(mark + '\0') != std::string::npos ? 1 : 0;
    }
    ::closedir(folder);
    return count;
  }

  std::string output;
  std::string mark;
  pid_t process = -1;
  int pipe = -1;

 private:
  bool read_more() {
    char buffer[4096];
    const ssize_t got = ::read(pipe, buffer, sizeof(buffer));
    if (got > 0) {
      output.append(buffer, static_cast<std::size_t>(got));
    }
    return got > 0;
  }
};

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

}  // namespace tandem::test
