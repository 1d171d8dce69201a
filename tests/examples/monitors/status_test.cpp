// --status_socket and `tandem top`: a Prometheus parser reads /metrics while a run goes on, /actors
// names what waits, and no digit changes.
#include <chrono>
#include <csignal>
#include <thread>

#include "examples/support/run_status.hpp"
#include "tests/examples/trainer_fixture.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::string_view kAsk = R"(
import json, socket, sys, time
def get(page):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(20)
        s.connect(sys.argv[1])
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
  const Finished top = shell(fmt::format("'{}/tandem' top '{}'", TANDEM_BIN_DIR, path("run")));
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
  const Finished top = shell(fmt::format("'{}/tandem' top '{}'", TANDEM_BIN_DIR, path("on")));
  EXPECT_THAT(top.out,
              AllOf(HasSubstr("step      4"), HasSubstr("waits     unknown"), HasSubstr("ended")));
}

TEST_F(Status, AnAddressForOthersIsRefused) {
  const Finished refused = demo("run", "--steps 2 --status_socket 0.0.0.0:9000");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("other hosts are not served"));
}

TEST_F(Status, TopRefusesAFolderWithoutARun) {
  const Finished refused = shell(fmt::format("'{}/tandem' top '{}'", TANDEM_BIN_DIR, path("no")));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("the --output_dir of a run?"));
}

}  // namespace
}  // namespace tandem
