#include "tests/support/process/own_folder.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tandem::test {
namespace {

namespace fs = std::filesystem;

/// The rate of a disk, of updates and of a GPU alike; a drill sets others.
constexpr const char* kRate = "1e10";
constexpr std::time_t kUnread_s = 1;  // when the file of rates was read, until a test reads it

/// Whether the variable comes from a launcher, and would make of a test one of its ranks.
bool is_launchers(std::string_view name) {
  constexpr std::array<std::string_view, 9> kNames = {
      "RANK",        "LOCAL_RANK",  "WORLD_SIZE",       "LOCAL_WORLD_SIZE", "MASTER_ADDR",
      "MASTER_PORT", "DS_ENV_FILE", "TANDEM_INTERFACE", "TANDEM_FLIGHT_FD"};
  constexpr std::array<std::string_view, 4> kPrefixes = {"SLURM_", "OMPI_", "PMI_", "PMIX_"};
  for (const std::string_view one : kNames) {
    if (name == one) {
      return true;
    }
  }
  for (const std::string_view prefix : kPrefixes) {
    if (name.starts_with(prefix)) {
      return true;
    }
  }
  return false;
}

void remove_launchers_variables() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (const std::string_view name = text.substr(0, text.find('=')); is_launchers(name)) {
      names.emplace_back(name);
    }
  }
  for (const std::string& name : names) {
    ::unsetenv(name.c_str());
  }
}

/// Also what a test has made read-only.
void remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (!error) {
    return;
  }
  const auto walk = fs::directory_options::skip_permission_denied;
  for (auto entry = fs::recursive_directory_iterator(folder, walk, error);
       !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (entry->is_directory(error) && !entry->is_symlink(error)) {
      fs::permissions(entry->path(), fs::perms::owner_all, fs::perm_options::add, error);
    }
  }
  fs::remove_all(folder, error);
}

}  // namespace

OwnFolder::OwnFolder() {
  // A shell starts what runs in its background with some of these ignored, and a program would
  // inherit that.
  for (const int number : {SIGINT, SIGQUIT, SIGHUP, SIGTERM}) {
    std::signal(number, SIG_DFL);
  }
  std::error_code error;
  std::string name = (fs::temp_directory_path(error) / "own-XXXXXX").string();
  if (error || ::mkdtemp(name.data()) == nullptr) {
    std::fprintf(stderr, "error: [test] cannot make %s: %s; set TMPDIR to a folder to write to\n",
                 name.c_str(), error ? error.message().c_str() : std::strerror(errno));
    std::exit(1);
  }
  path_ = name;
  // Other users reach what a test shows them, as they do in /tmp.
  fs::permissions(path_, fs::perms(0755));
  const auto give = [&](const char* folder, int mode,
                        std::initializer_list<const char*> variables) {
    fs::create_directory(path_ / folder);
    fs::permissions(path_ / folder, fs::perms(mode));
    for (const char* variable : variables) {
      ::setenv(variable, (path_ / folder).c_str(), 1);
    }
  };
  give("tmp", 01777, {"TMPDIR", "TEST_TMPDIR"});
  give("run", 0700, {"XDG_RUNTIME_DIR"});
  remove_launchers_variables();
  ::setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
  const char* home = std::getenv("TANDEM_TEST_HOME");
  if (home != nullptr && std::strcmp(home, "given") == 0) {
    return;
  }
  give("home", 0700, {"HOME"});
  give("cache", 0755, {"TANDEM_CACHE"});
  for (const char* variable : {"XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
                               "XDG_STATE_HOME", "HF_HOME", "HF_HUB_CACHE"}) {
    ::unsetenv(variable);
  }
  const char* rate = std::getenv("TANDEM_TEST_RATE");
  const fs::path rates = path_ / "cache" / "bandwidths.tsv";
  std::ofstream(rates) << "tandem bandwidths 2\n*\t" << (rate != nullptr ? rate : kRate) << '\n';
  if (const char* readers = std::getenv("TANDEM_TEST_RATE_READERS"); readers != nullptr) {
    readers_ = readers;
    ::unsetenv("TANDEM_TEST_RATE_READERS");  // a test that runs tests has its own
    const std::array<timespec, 2> times = {timespec{.tv_sec = kUnread_s, .tv_nsec = 0},
                                           timespec{.tv_sec = 0, .tv_nsec = UTIME_OMIT}};
    (void)::utimensat(AT_FDCWD, rates.c_str(), times.data(), 0);
  }
}

OwnFolder::~OwnFolder() {
  struct stat rates{};
  if (!readers_.empty() && ::stat((path_ / "cache" / "bandwidths.tsv").c_str(), &rates) == 0 &&
      rates.st_atim.tv_sec != kUnread_s) {
    std::ifstream command("/proc/self/cmdline");
    std::string line{std::istreambuf_iterator<char>(command), {}};
    line.append(1, '\n');
    std::ofstream(readers_, std::ios::app) << line;
  }
  remove_folder(path_);
}

}  // namespace tandem::test
