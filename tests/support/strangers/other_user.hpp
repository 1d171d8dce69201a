// tests/support/strangers/other_user.hpp — a process of another user of this host, for tests of
// what it must not be able to do.
#pragma once

#include <csignal>
#include <functional>
#include <string>

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tandem::test {

constexpr uid_t kOtherUser = 65534;

/// `body` runs in a child process as that user; what it returns comes back by take(). The child
/// ends when this process does.
class OtherUser {
 public:
  /// Only root can become another user.
  static bool can_be() { return ::geteuid() == 0; }

  explicit OtherUser(const std::function<std::string()>& body) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const bool other =
          ::setgroups(0, nullptr) == 0 && ::setgid(kOtherUser) == 0 && ::setuid(kOtherUser) == 0;
      const std::string text = other ? body() : "cannot become another user";
      (void)!::write(ends[1], text.data(), text.size());
      ::_exit(0);
    }
    ::close(ends[1]);
    pipe_ = ends[0];
  }
  ~OtherUser() {
    ::close(pipe_);
    ::kill(process_, SIGKILL);
    (void)::waitpid(process_, nullptr, 0);
  }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;

  /// Blocks until the child is through.
  [[nodiscard]] std::string take() const {
    std::string all;
    char buffer[512];
    for (ssize_t got = 0; (got = ::read(pipe_, buffer, sizeof(buffer))) > 0;) {
      all.append(buffer, static_cast<std::size_t>(got));
    }
    return all;
  }

 private:
  pid_t process_ = -1;
  int pipe_ = -1;
};

}  // namespace tandem::test

// Within a test.
#define TANDEM_NEEDS_ANOTHER_USER()                                           \
  if (!::tandem::test::OtherUser::can_be()) {                                 \
    GTEST_SKIP() << "only root can start a process of another user: not run"; \
  }                                                                           \
  static_assert(true)
