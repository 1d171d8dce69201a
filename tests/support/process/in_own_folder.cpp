// tests/support/process/in_own_folder.cpp — `in_own_folder PROGRAM ARGUMENTS...` runs a test that
// is no GoogleTest binary with the folders of support/process/own_folder.hpp, and ends as it ends.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/process/own_folder.hpp"

namespace {

constexpr int kSkipped = 77;
volatile std::sig_atomic_t child = 0;

/// A signal that ends this process ends the test, and the folder goes.
void forward(int number) {
  if (child > 0) {
    ::kill(static_cast<pid_t>(child), number);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("error: [test] no program given; in_own_folder PROGRAM ARGUMENTS...\n", stderr);
    return 2;
  }
  const tandem::test::OwnFolder folder;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    std::signal(number, &forward);
  }
  const pid_t process = ::fork();
  if (process == 0) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      std::signal(number, SIG_DFL);
    }
    ::execvp(argv[1], argv + 1);
    if (errno == EACCES && ::geteuid() != 0) {
      std::fprintf(stderr, "skipped: this user may not run %s\n", argv[1]);
      ::_exit(kSkipped);
    }
    std::fprintf(stderr, "error: [test] cannot run %s: %s\n", argv[1], std::strerror(errno));
    ::_exit(127);
  }
  child = process;
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
