#include "tools/launch/launch_words.hpp"

#include <cstring>

#include <sys/wait.h>

#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"
#include "tools/launch/line_relay.hpp"

namespace tandem {

void say_line(std::string_view line) { write_line(2, one_line(line) + "\n"); }

int code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("was killed by signal {} ({})", WTERMSIG(status),
                       ::strsignal(WTERMSIG(status)));
  }
  return fmt::format("exited with code {}", WEXITSTATUS(status));
}

bool is_witness(int code) { return code == static_cast<int>(ExitCode::kPeer); }

}  // namespace tandem
