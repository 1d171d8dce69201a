#include "engine/distributed/run_secret.hpp"

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actors/collectives/secret.hpp"
#include "runtime/system/owned_descriptor.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

bool is_mine_alone(const struct stat& status) {
  return status.st_uid == ::geteuid() && (status.st_mode & 077) == 0;
}

/// At most one byte more than a secret and a port have.
std::string read_short(int descriptor) {
  std::string text(Secret::kMostCharacters + 16, 0);
  std::size_t got = 0;
  while (got < text.size()) {
    const ssize_t some = ::read(descriptor, text.data() + got, text.size() - got);
    if (some < 0 && errno == EINTR) {
      continue;
    }
    if (some <= 0) {
      break;
    }
    got += static_cast<std::size_t>(some);
  }
  text.resize(got);
  return text;
}

std::string without_blanks_behind(std::string text) {
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

void check_length(std::string_view secret, std::string_view of) {
  if (secret.size() < Secret::kLeastCharacters || secret.size() > Secret::kMostCharacters) {
    throw user_error("rendezvous",
                     "{} has {} characters; it takes {} to {}, such as those of `openssl rand "
                     "-hex 32`",
                     of, secret.size(), Secret::kLeastCharacters, Secret::kMostCharacters);
  }
}

std::string secret_of_file(const std::string& path) {
  const OwnedDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status{};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) {
    throw user_error("rendezvous", "cannot read {}, which TANDEM_RUN_SECRET_FILE names: {}", path,
                     std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode) || !is_mine_alone(status)) {
    throw user_error("rendezvous",
                     "{}, which TANDEM_RUN_SECRET_FILE names, is of user {} and mode {:04o}; make "
                     "it a file of your own with mode 0600",
                     path, status.st_uid, status.st_mode & 07777);
  }
  std::string secret = without_blanks_behind(read_short(file.get()));
  check_length(secret, path);
  return secret;
}

/// The folder, opened; nothing where it is not this user's alone. Links are not followed.
OwnedDescriptor open_folder(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat status{};
  if (descriptor >= 0 && (::fstat(descriptor, &status) != 0 || !is_mine_alone(status))) {
    ::close(descriptor);
    return OwnedDescriptor(-1);
  }
  return OwnedDescriptor(descriptor);
}

/// Names of folders that mkdtemp made because others had taken the one of this name.
const std::string& taken_name() {
  static const std::string name = fmt::format("tandem-{}", ::geteuid());
  return name;
}

/// The folder and its parents, for this user alone.
void make_folder(const std::string& path) {
  for (std::size_t end = path.find('/', 1); end != std::string::npos;
       end = path.find('/', end + 1)) {
    (void)::mkdir(path.substr(0, end).c_str(), 0700);
  }
  (void)::mkdir(path.c_str(), 0700);
}

/// Folders of this user's own choice. The last one is a folder of its own, since caches share
/// ~/.cache/tandem, which others may enter.
std::vector<std::string> folders() {
  std::vector<std::string> all;
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime == '/') {
    all.emplace_back(runtime);
  }
  all.push_back(fmt::format("/tmp/{}", taken_name()));
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    all.push_back(fmt::format("{}/.cache/tandem/runs", home));
  }
  return all;
}

/// Folders beside /tmp/tandem-UID that only this user can have made and can enter.
std::vector<std::string> spare_folders() {
  std::vector<std::string> all;
  std::error_code error;
  const std::string prefix = taken_name() + ".";
  for (std::filesystem::directory_iterator at("/tmp", error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(prefix) && open_folder(at->path().string()).get() >= 0) {
      all.push_back(at->path().string());
    }
  }
  return all;
}

bool write_note(int folder, const std::string& name, const Note& note) {
  const std::string half = fmt::format("{}.{}", name, ::getpid());
  (void)::unlinkat(folder, half.c_str(), 0);
  const OwnedDescriptor file(
      ::openat(folder, half.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  const std::string text = fmt::format("{} {}\n", note.port, note.secret);
  if (file.get() < 0 ||
      ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::renameat(folder, half.c_str(), folder, name.c_str()) != 0) {
    (void)::unlinkat(folder, half.c_str(), 0);
    return false;
  }
  return true;
}

}  // namespace

std::string given_secret(const Environment& environment) {
  if (!environment.secret.empty()) {
    check_length(environment.secret, "TANDEM_RUN_SECRET");
    return environment.secret;
  }
  return environment.secret_file.empty() ? std::string() : secret_of_file(environment.secret_file);
}

// A port is one run's on a host, but the folder may be shared by hosts or by containers with a
// network of their own: the host's name and the network are in the name, too.
MeetingNote::MeetingNote(const Environment& environment) {
  char host[256] = {};
  (void)::gethostname(host, sizeof(host) - 1);
  struct stat network{};
  (void)::stat("/proc/self/ns/net", &network);
  name_ = fmt::format("tandem-run-{}-{}-{}", host, network.st_ino, environment.master_port);
}

MeetingNote::~MeetingNote() { remove(); }

void MeetingNote::leave(const Note& note) {
  const auto leave_in = [&](const std::string& path) {
    const OwnedDescriptor folder = open_folder(path);
    const bool is_left = folder.get() >= 0 && write_note(folder.get(), name_, note);
    left_ = is_left ? fmt::format("{}/{}", path, name_) : "";
    return is_left;
  };
  for (const std::string& path : folders()) {
    make_folder(path);
    if (leave_in(path)) {
      return;
    }
  }
  std::string spare = fmt::format("/tmp/{}.XXXXXX", taken_name());
  if (::mkdtemp(spare.data()) != nullptr && leave_in(spare)) {
    spare_ = spare;
    return;
  }
  throw user_error(
      "rendezvous",
      "no folder for the secret of the run: {} is not writable, or not yours with mode "
      "0700; set TANDEM_RUN_SECRET to the same text on all ranks",
      fmt::join(folders(), ", "));
}

void MeetingNote::remove() noexcept {
  if (!left_.empty()) {
    (void)::unlink(left_.c_str());
    left_.clear();
  }
  if (!spare_.empty()) {
    (void)::rmdir(spare_.c_str());
    spare_.clear();
  }
}

std::optional<Note> MeetingNote::read() const {
  if (auto note = read_in(folders())) {
    return note;
  }
  return read_in(spare_folders());
}

std::optional<Note> MeetingNote::read_in(const std::vector<std::string>& places) const {
  for (const std::string& path : places) {
    const OwnedDescriptor folder = open_folder(path);
    const OwnedDescriptor file(folder.get() < 0
                                   ? -1
                                   : ::openat(folder.get(), name_.c_str(),
                                              O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    struct stat status{};
    if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
        !is_mine_alone(status)) {
      continue;
    }
    const std::string text = without_blanks_behind(read_short(file.get()));
    Note note;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), note.port);
    if (error == std::errc() && end != text.data() + text.size() && note.port > 0 &&
        note.port <= 65'535) {
      note.secret.assign(end + 1, text.data() + text.size());
      return note;
    }
  }
  return std::nullopt;
}

}  // namespace tandem
