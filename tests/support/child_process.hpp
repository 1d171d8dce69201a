// tests/support/child_process.hpp — a test's code in a process of its own, and what it threw there.
#pragma once

#include <csignal>
#include <exception>
#include <functional>
#include <string>
#include <utility>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/util/error.hpp"

namespace tandem::test {

/// `body` runs there; what it writes to the pipe, and the text of what it throws, comes back. The
/// exit code is 0, that of an Error, or 1.
class ChildProcess {
 public:
  explicit ChildProcess(const std::function<void(int pipe)>& body) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    process_ = ::fork();
    if (process_ == 0) {
      ::close(ends[0]);
      std::string text;
      int code = 0;
      try {
        body(ends[1]);
      } catch (const Error& error) {
        text = error.what();
        code = static_cast<int>(error.code());
      } catch (const std::exception& error) {
        text = error.what();
        code = 1;
      }
      (void)!::write(ends[1], text.data(), text.size());
      ::_exit(code);
    }
    ::close(ends[1]);
    pipe_ = ends[0];
  }
  ~ChildProcess() { ::close(pipe_); }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void signal(int number) const { EXPECT_EQ(::kill(process_, number), 0); }
  /// Blocks until the child wrote a byte.
  void wait_for_byte() const {
    char byte = 0;
    EXPECT_EQ(::read(pipe_, &byte, 1), 1);
  }
  /// Everything that it wrote until its end.
  [[nodiscard]] std::string text() const {
    std::string all;
    char buffer[512];
    for (ssize_t got = 0; (got = ::read(pipe_, buffer, sizeof(buffer))) > 0;) {
      all.append(buffer, static_cast<std::size_t>(got));
    }
    return all;
  }
  /// Its wait status. Once.
  [[nodiscard]] int wait() const {
    int status = 0;
    EXPECT_EQ(::waitpid(process_, &status, 0), process_);
    return status;
  }

 private:
  pid_t process_ = -1;
  int pipe_ = -1;
};

}  // namespace tandem::test
