#include "models/foreign/converter.hpp"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/util/one_line.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhere = "import";
constexpr std::string_view kError = "error: ";

/// The folder tools/ with the modules.
fs::path tools_folder() {
  std::vector<fs::path> places;
  if (const char* named = std::getenv("TANDEM_TOOLS"); named != nullptr) {
    places.push_back(fs::absolute(named));
  }
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  places.push_back((program / "../share/tandem/tools").lexically_normal());
  places.push_back((program / "../../../tools").lexically_normal());  // of build/PRESET/bin
  for (const fs::path& place : places) {
    if (fs::exists(place / "convert/__main__.py", ignored)) {
      return place;
    }
  }
  throw user_error(
      kWhere,
      "the modules that read files of torch lie neither in {} nor in {}; set "
      "TANDEM_TOOLS to share/tandem/tools of an installation, or to tools/ of the tree",
      places.front().string(), places.back().string());
}

std::string python_for(const fs::path& tools) {
  if (const char* named = std::getenv("TANDEM_PYTHON"); named != nullptr && *named != '\0') {
    return named;
  }
  const fs::path own = tools.parent_path() / ".venv/bin/python3";
  std::error_code ignored;
  return fs::exists(own, ignored) ? own.string() : "python3";
}

[[nodiscard]] Error lack_of(std::string_view what) {
  return failure(ExitCode::kFailure, kWhere, "no {}: {}", what,
                 std::generic_category().message(errno));
}

std::string content_of(int file) {
  struct stat about{};
  std::string text(::fstat(file, &about) == 0 ? static_cast<std::size_t>(about.st_size) : 0, '\0');
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t count = ::pread(file, text.data() + at, text.size() - at, static_cast<off_t>(at));
    if (count <= 0) {
      throw lack_of("memory to read what Python says");
    }
    at += static_cast<std::size_t>(count);
  }
  return text;
}

/// Starts argv[0] with three descriptors as its standard ones and no other, and with no signal
/// blocked. Returns 0, or the reason.
int spawn(pid_t& process, std::vector<std::string> arguments, int input, int output, int said) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) {
    argv.push_back(argument.data());
  }
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files{};
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, said, STDERR_FILENO);
  ::posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
  posix_spawnattr_t attributes{};
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const int reason = ::posix_spawnp(&process, argv[0], &files, &attributes, argv.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  return reason;
}

}  // namespace

Converter::Converter(std::vector<std::string> arguments)
    : path_(arguments.back()),
      output_(::memfd_create("convert-output", MFD_CLOEXEC)),
      said_(::memfd_create("convert-said", MFD_CLOEXEC)) {
  const fs::path tools = tools_folder();
  python_ = python_for(tools);
  int ends[2] = {-1, -1};
  if (output_.get() < 0 || said_.get() < 0 ||
      ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw lack_of("descriptors for Python");
  }
  input_ = OwnedDescriptor(ends[0]);
  const OwnedDescriptor other_end(ends[1]);
  std::vector<std::string> command = {python_, "-I", (tools / "run_module.py").string(), "convert"};
  command.insert(command.end(), std::make_move_iterator(arguments.begin()),
                 std::make_move_iterator(arguments.end()));
  const int reason =
      spawn(process_, std::move(command), other_end.get(), output_.get(), said_.get());
  if (reason != 0) {
    process_ = -1;
    throw user_error(kWhere,
                     "{} needs a Python with torch, and {} does not start ({}); ./tandem setup "
                     "installs one, or set TANDEM_PYTHON to a Python that has torch",
                     path_, python_, std::generic_category().message(reason));
  }
}

Converter::~Converter() {
  if (process_ > 0) {
    ::kill(process_, SIGKILL);
    while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

void Converter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(input_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno != EINTR) {
      (void)finish();
      throw not_taken();
    }
  }
}

std::string Converter::finish() {
  input_ = OwnedDescriptor();
  int status = 0;
  while (::waitpid(process_, &status, 0) < 0) {
    if (errno != EINTR) {
      throw lack_of("word of the Python's end");
    }
  }
  process_ = -1;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw error_of(status);
  }
  return content_of(output_.get());
}

Error Converter::not_taken() const {
  return failure(ExitCode::kFailure, kWhere,
                 "{}: {} did not take all of it; set TANDEM_PYTHON to a "
                 "Python that has torch",
                 path_, python_);
}

Error Converter::error_of(int status) const {
  const std::string said = content_of(said_.get());
  std::string last;
  for (std::size_t at = 0; at < said.size();) {
    const std::size_t end = std::min(said.find('\n', at), said.size());
    const std::string line = said.substr(at, end - at);
    at = end + 1;
    if (WIFEXITED(status) && line.starts_with(kError)) {
      return {WEXITSTATUS(status) == 2 ? ExitCode::kUserInput : ExitCode::kFailure,
              one_line(line.substr(kError.size()))};
    }
    last = line.empty() ? last : line;
  }
  if (WIFSIGNALED(status)) {
    const bool from_outside = WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGTERM;
    return failure(from_outside ? ExitCode::kFailure : ExitCode::kUserInput, kWhere,
                   "the Python that read {} was ended by signal {}; {}", path_, WTERMSIG(status),
                   from_outside ? "give it more memory" : "copy the checkpoint again");
  }
  return user_error(kWhere,
                    "the Python for {} ({}) ended with exit code {}: {}; set TANDEM_PYTHON to a "
                    "Python that has torch",
                    path_, python_, WEXITSTATUS(status), one_line(last.substr(0, 300)));
}

}  // namespace tandem
