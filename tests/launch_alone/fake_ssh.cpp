// fake_ssh OPTIONS HOST COMMAND — stands for ssh in tests of the launcher: the command runs on this
// host, behind pipes of its own, so that it outlives this process as one on another host would. The
// host's name says what happens:
//   nowhere     there is no such host        hangs      no answer
//   banner...   words before the command     absent     the program is not there
//   ...apart-NS in the network namespace NS of `ip netns`, where the host's name is NS
// When the file FAKE_SSH_CUT is there, the connection to a host "cut..." ends, and that to
// "dumb..." passes nothing on any more. FAKE_SSH_LOG gets the command lines.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

bool is_cut() {
  const char* const path = std::getenv("FAKE_SSH_CUT");
  return path != nullptr && ::access(path, F_OK) == 0;
}

void note_command_line(int argc, char** argv) {
  if (const char* path = std::getenv("FAKE_SSH_LOG")) {
    std::ofstream log(path, std::ios::app);
    for (int at = 0; at < argc; ++at) {
      log << argv[at] << '\n';
    }
  }
}

/// Into NS of "...apart-NS", as a client of 10.213.7.9 comes in at the address that is there.
void go_apart(const std::string& host) {
  const std::string name = host.substr(host.rfind('-') + 1);
  const int space = ::open(("/var/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0 || ::setns(space, CLONE_NEWNET) != 0) {
    std::perror("fake_ssh: setns");
    ::_exit(255);
  }
  // Programs look for their interfaces in /sys, as `ip netns exec` knows.
  if (::unshare(CLONE_NEWNS) == 0 &&
      ::mount("none", "/", nullptr, MS_SLAVE | MS_REC, nullptr) == 0 &&
      ::umount2("/sys", MNT_DETACH) == 0) {
    (void)::mount(name.c_str(), "/sys", "sysfs", 0, nullptr);
  }
  if (::unshare(CLONE_NEWUTS) == 0) {
    (void)::sethostname(name.data(), name.size());
  }
  const char last = name.back();  // a..: 10.213.7.1..
  ::setenv("SSH_CONNECTION",
           ("10.213.7.9 40000 10.213.7." + std::to_string(last - 'a' + 1) + " 22").c_str(), 1);
}

}  // namespace

int main(int argc, char** argv) {
  note_command_line(argc, argv);
  int at = 1;
  while (at < argc && argv[at][0] == '-') {
    at += std::strcmp(argv[at], "-o") == 0 ? 2 : 1;
  }
  if (at + 1 >= argc) {
    return 255;
  }
  const std::string host = argv[at];
  std::string command = argv[at + 1];
  if (host == "nowhere") {
    std::fprintf(stderr, "ssh: Could not resolve hostname nowhere: Name or service not known\r\n");
    return 255;
  }
  if (host == "hangs") {
    ::pause();
  }
  if (host.starts_with("banner")) {
    std::printf("Welcome\n");
    std::fflush(stdout);
    std::fprintf(stderr, "Authorized use only\r\n");
  }
  if (host == "absent") {
    command = "exec /no/such/program launch --node";
  }
  int in[2];
  int out[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) {
    return 255;
  }
  const pid_t remote = ::fork();
  if (remote == 0) {
    ::setsid();
    if (host.find("apart-") != std::string::npos) {
      go_apart(host);
    }
    ::dup2(in[0], 0);
    ::dup2(out[1], 1);
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  ::signal(SIGPIPE, SIG_IGN);
  for (bool reads_input = true;;) {
    pollfd both[2] = {{.fd = out[0], .events = POLLIN, .revents = 0},
                      {.fd = reads_input ? 0 : -1, .events = POLLIN, .revents = 0}};
    (void)::poll(both, 2, 10);
    if (is_cut() && host.starts_with("cut")) {
      ::kill(::getpid(), SIGKILL);
    }
    if (is_cut() && host.starts_with("dumb")) {
      ::pause();
    }
    if (both[0].revents != 0) {
      char buffer[65536];
      const ssize_t got = ::read(out[0], buffer, sizeof(buffer));
      if (got <= 0) {
        break;
      }
      (void)!::write(1, buffer, static_cast<std::size_t>(got));
    }
    if (both[1].revents != 0) {
      char buffer[65536];
      const ssize_t got = ::read(0, buffer, sizeof(buffer));
      if (got <= 0) {
        ::close(in[1]);
        reads_input = false;
      } else {
        (void)!::write(in[1], buffer, static_cast<std::size_t>(got));
      }
    }
  }
  int status = 0;
  ::waitpid(remote, &status, 0);
  return WIFSIGNALED(status) ? 255 : WEXITSTATUS(status);
}
