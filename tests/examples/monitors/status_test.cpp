// --status_socket and `tandem top`: a Prometheus parser reads /metrics while a run goes on, /actors
// names what waits, and no digit changes.
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "runtime/supervision/socket_path.hpp"
#include "runtime/system/owned_descriptor.hpp"
#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"
#include "trainer/metrics/run_status.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::string_view kAsk = R"(
import json, os, socket, sys, time
def get(page):
    os.chdir(os.path.dirname(sys.argv[1]))  # a socket's address holds a short path only
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(20)
        s.connect(os.path.basename(sys.argv[1]))
        s.sendall(f"GET {page} HTTP/1.0\r\n\r\n".encode())
        answer = b""
        while chunk := s.recv(4096):
            answer += chunk
    head, body = answer.split(b"\r\n\r\n", 1)
    assert b" 200 " in head, head
    return body.decode()
for _ in range(400):
    try:
        last = json.loads(get("/step"))["last"]
        if last and last["step"] >= 3:
            break
    except OSError:
        pass
    time.sleep(.05)
step = json.loads(get("/step"))
assert step["steps"] == 2000 and step["last"]["loss"] > 0 and step["eta_s"] > 0, step
actors = json.loads(get("/actors"))
assert any(actor["name"] for actor in actors["actors"]) and actors["scopes"], actors
text = get("/metrics")
values = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if not line.startswith("#")}
assert values["tandem_step"] >= 3 and values["tandem_loss"] > 0, values
try:
    from prometheus_client.parser import text_string_to_metric_families
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["tandem_loss"].type == "gauge" and families["tandem_loss"].samples[0].value == values["tandem_loss"]
    print("prometheus reads", len(families))
except ImportError:
    print("no prometheus_client")
)";

class Status : public TrainerTest {};

TEST_F(Status, ARunAnswersWhileItGoesOn) {
  if (!test::python_runs()) {
    GTEST_SKIP() << "this user cannot start " << kPython;
  }
  const std::string line = fmt::format(
      "exec '{}' --output_dir '{}' --no-samples --progress off --steps 2000 --status_socket auto "
      ">'{}' 2>&1 </dev/null",
      kTrainer, path("run"), path("log"));
  const pid_t process = ::fork();
  if (process == 0) {
    ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    ::_exit(127);
  }
  const Finished asked =
      shell(fmt::format("'{}' '{}' '{}/status.sock'", kPython, write("ask.py", kAsk), path("run")));
  const Finished top = shell(fmt::format("'{}/tandem' top '{}'", test::bin_dir(), path("run")));
  ::kill(process, SIGTERM);
  int status = 0;
  ::waitpid(process, &status, 0);
  EXPECT_EQ(asked.code, 0) << asked.err << content_of(path("log"));
  if (test::python_has("prometheus_client")) {
    EXPECT_THAT(asked.out, HasSubstr("prometheus reads"));
  }
  EXPECT_EQ(top.code, 0) << top.err;
  EXPECT_THAT(top.out, AllOf(HasSubstr(" of 2000, "), HasSubstr("loss      "), HasSubstr("█"),
                             HasSubstr("waits     since"), HasSubstr("memory    ")));
  EXPECT_EQ(top.out.find('\x1b'), std::string::npos) << "no terminal";
  EXPECT_FALSE(fs::exists(path("run/status.sock")));
}

TEST_F(Status, ChangesNoDigit) {
  ASSERT_EQ(demo("off", "--steps 4").code, 0);
  ASSERT_EQ(demo("on", "--steps 4 --status_socket auto").code, 0);
  for (const char* name : {"loss", "grad_norm", "lr"}) {
    EXPECT_EQ(column("on", name), column("off", name)) << name;
  }
  const Finished top = shell(fmt::format("'{}/tandem' top '{}'", test::bin_dir(), path("on")));
  EXPECT_THAT(top.out,
              AllOf(HasSubstr("step      4"), HasSubstr("waits     unknown"), HasSubstr("ended")));
}

/// A stranger's socket, which answers every request by `answer`, which returns false when its other
/// end is gone.
class StrangersSocket {
 public:
  StrangersSocket(const std::string& path, std::function<void(int socket)> answer) {
    ::unlink(path.c_str());
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    const SocketPath place(path);
    place.address.copy(at.sun_path, sizeof(at.sun_path) - 1);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    thread_ = std::thread([this, answer = std::move(answer)] {
      for (;;) {
        const OwnedDescriptor socket(::accept(listener_.get(), nullptr, nullptr));
        if (socket.get() < 0) {
          return;
        }
        char request[4096];
        (void)!::recv(socket.get(), request, sizeof(request), 0);
        answer(socket.get());
      }
    });
  }
  ~StrangersSocket() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  StrangersSocket(const StrangersSocket&) = delete;

  static bool put(int socket, std::string_view text) {
    return ::send(socket, text.data(), text.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size());
  }

 private:
  OwnedDescriptor listener_{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::thread thread_;
};

TEST_F(Status, TopBelievesNoSocket) {
  write("r\x1bn/metrics.jsonl", "{\"step\": 3, \"loss\": 2}\n[5]\n\"x\"\n");
  const auto top = [&] {
    const Finished done = shell(fmt::format("'{}/tandem' top '{}' --status_socket '{}'",
                                            test::bin_dir(), path("r\x1bn"), path("s.sock")));
    EXPECT_EQ(done.code, 0) << done.err;
    EXPECT_EQ(done.out.find('\x1b'), std::string::npos) << done.out;
    EXPECT_THAT(done.out, HasSubstr("step      3"));
    return done.out;
  };
  constexpr std::string_view kHead = "HTTP/1.0 200 OK\r\n\r\n";
  const auto says = [&](const std::string& body) {
    const StrangersSocket socket(
        path("s.sock"), [&](int to) { (void)StrangersSocket::put(to, std::string(kHead) + body); });
    return top();
  };
  const std::string names = says(
      R"({"scopes": [{"tasks": [{"name": "a\u001b[31m\nforged", "awaits": "b\u0007", )"
      R"("since_s": 1}, 5, {"since_s": "x"}]}, "y"], "actors": [{"name": "c\nd", "depth": 3}, )"
      R"({"name": 5, "depth": "x"}, null]})");
  EXPECT_THAT(names, AllOf(HasSubstr("a\\x1b[31m\\nforged"), HasSubstr("c\\nd: 3 waiting")));
  for (const char* other :
       {"{\"scopes\": 5, \"actors\": {}}", "{}", "[1, 2]", "5", "no JSON", ""}) {
    EXPECT_THAT(says(other), HasSubstr("waits     ")) << other;
  }
  EXPECT_THAT(says("[1, 2]"), HasSubstr("is no run"));

  std::atomic<std::size_t> sent = 0;
  {
    const StrangersSocket endless(path("s.sock"), [&](int to) {
      const std::string much(1 << 16, 'x');
      for (bool goes = StrangersSocket::put(to, kHead); goes;
           goes = StrangersSocket::put(to, much)) {
        sent += much.size();
      }
    });
    EXPECT_THAT(top(), HasSubstr("waits     unknown"));
  }
  EXPECT_LT(sent.load(), std::size_t{64} << 20);
  const StrangersSocket dripping(path("s.sock"), [&](int to) {
    while (StrangersSocket::put(to, "x")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  EXPECT_THAT(top(), HasSubstr("waits     unknown"));
}

TEST_F(Status, TopReadsNoLinkAndNoFifo) {
  write("secret", "{\"step\": 2718281828, \"loss\": 2}\n");
  fs::create_directories(path("run"));
  fs::create_symlink(path("secret"), path("run/metrics.jsonl"));
  ASSERT_EQ(::mkfifo(path("run/notes.txt").c_str(), 0600), 0);
  const Finished done = shell(fmt::format("'{}/tandem' top '{}'", test::bin_dir(), path("run")));
  EXPECT_EQ(done.code, 0);
  EXPECT_THAT(done.out, ::testing::Not(HasSubstr("2718281828")));
}

TEST_F(Status, AnAddressForOthersIsRefused) {
  const Finished refused = demo("run", "--steps 2 --status_socket 0.0.0.0:9000");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("other hosts are not served"));
}

TEST_F(Status, TopRefusesAFolderWithoutARun) {
  const Finished refused = shell(fmt::format("'{}/tandem' top '{}'", test::bin_dir(), path("no")));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("the --output_dir of a run?"));
}

}  // namespace
}  // namespace tandem
