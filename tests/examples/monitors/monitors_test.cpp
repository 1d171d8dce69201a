// A config's tensorboard, csv_monitor and wandb blocks: their readers read what is written, a
// resumed run goes on in it, and nothing of them changes a digit or stops a run.
#include <chrono>
#include <csignal>
#include <memory>
#include <thread>

#include "engine/metrics/wandb_feed.hpp"
#include "runtime/util/error.hpp"
#include "tests/examples/trainer_fixture.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// In the place of the module: writes down what it is told.
constexpr std::string_view kFakeModule = R"(
import json, os
class Run:
    def __init__(self, about):
        self.file = open(os.path.join(about["dir"], "told.jsonl"), "a")
        self.say({"init": about, "mode": os.environ.get("WANDB_MODE")})
    def say(self, what):
        self.file.write(json.dumps(what) + "\n")
        self.file.flush()
    def log(self, scalars, step):
        self.say({"step": step, "scalars": scalars})
    def finish(self):
        self.say("finished")
def init(**about):
    return Run(about)
)";

/// Prints what three readers find in a run: RUN LOGS.
constexpr std::string_view kRead = R"(
import csv, json, os, sys, time
run, logs = sys.argv[1:]
lines = [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl"))]
with open(os.path.join(logs, "csv", "Train_Samples_train_loss.csv"), newline="") as file:
    rows = list(csv.reader(file))
assert rows[0] == ["step", "train_loss"], rows[0]
assert [(int(at), float(loss)) for at, loss in rows[1:]] == [(4 * m["step"], m["loss"]) for m in lines], rows
with open(os.path.join(logs, "csv", "Train_Samples_lr.csv"), newline="") as file:
    rates = list(csv.reader(file))
assert rates[0] == ["step", "lr"] and [float(rate) for _, rate in rates[1:]] == [m["lr"] for m in lines]
assert sorted(name for name in os.listdir(os.path.join(logs, "csv")) if name.endswith(".csv")) == ["Train_Samples_lr.csv", "Train_Samples_train_loss.csv"]
told = [json.loads(line) for line in open(os.path.join(run, "told.jsonl"))]
told = [record for record in told if "step" in record]
assert [record["step"] for record in told] == [4 * m["step"] for m in lines], told
for record, m in zip(told, lines):
    assert record["scalars"]["train/loss"] == record["scalars"]["Train/Samples/train_loss"] == m["loss"]
stamps = [record["scalars"]["_timestamp"] for record in told]  # of the steps, not of the telling
assert stamps == sorted(set(stamps)) and stamps[-1] <= time.time() < stamps[0] + 3600, stamps
print("csv and wandb agree")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(os.path.join(logs, "tb"), size_guidance={"scalars": 0}).Reload()
assert sorted(events.Tags()["scalars"]) == ["Train/Samples/lr", "Train/Samples/train_loss"], events.Tags()
assert [e.step for e in events.Scalars("Train/Samples/train_loss")] == [4 * m["step"] for m in lines]
print("tensorboard agrees")
)";

class Monitors : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    write("modules/wandb.py", kFakeModule);
  }
  [[nodiscard]] std::string config(bool on) const {
    return write(on ? "on.json" : "off.json", fmt::format(R"({{
"train_batch_size": 4, "zero_optimization": {{"stage": 3}},
"tensorboard": {{"enabled": {0}, "output_path": "{1}", "job_name": "tb"}},
"csv_monitor": {{"enabled": {0}, "output_path": "{1}", "job_name": "csv"}},
"wandb": {{"enabled": {0}, "project": "p", "group": "g", "team": null}}}})",
                                                          on, path("logs")));
  }
  /// The demo with that module in the place of wandb's.
  [[nodiscard]] Finished run(const std::string& output, const std::string& flags) const {
    return shell(
        fmt::format("PYTHONPATH='{}' '{}' --output_dir '{}' --progress off --no-samples "
                    "--lr 1e-3 --batch_size 4 {}",
                    path("modules"), kTrainer, path(output), flags));
  }
  [[nodiscard]] Finished read(const std::string& output) const {
    return shell(fmt::format("'{}' '{}' '{}' '{}'", kPython, write("read.py", kRead), path(output),
                             path("logs")));
  }
};

TEST_F(Monitors, ReadersReadThemAndNoDigitChanges) {
  const std::string steps = "--steps 6 --deepspeed_config '{}'";
  const Finished off = run("off", fmt::format(fmt::runtime(steps), config(false)));
  ASSERT_EQ(off.code, 0) << off.err;
  EXPECT_FALSE(fs::exists(path("logs")));
  const Finished on = run("on", fmt::format(fmt::runtime(steps), config(true)));
  ASSERT_EQ(on.code, 0) << on.err;
  for (const char* name : {"loss", "grad_norm", "lr"}) {
    EXPECT_EQ(column("on", name), column("off", name)) << name;
  }
  const std::string told = content_of(path("on/told.jsonl"));
  EXPECT_THAT(told, AllOf(HasSubstr(R"("project": "p", "group": "g")"),
                          HasSubstr(R"("mode": "offline")"), HasSubstr("\"finished\"")));
  if (!test::python_runs()) {
    GTEST_SKIP() << "this user cannot start " << kPython;
  }
  const Finished found = read("on");
  EXPECT_THAT(found.out, HasSubstr("csv and wandb agree")) << found.err;
  if (test::python_has("tensorboard")) {
    EXPECT_EQ(found.code, 0) << found.err;
  }
}

TEST_F(Monitors, AResumedRunGoesOnInThem) {
  const std::string flags = fmt::format("--deepspeed_config '{}' --save_every 2", config(true));
  ASSERT_EQ(run("run", flags + " --steps 5").code, 0);
  fs::remove_all(path("run/checkpoints/step-00000005"));  // as if killed behind step 4
  const std::string id = content_of(path("run/wandb_id.txt"));
  fs::remove(path("run/told.jsonl"));
  const Finished resumed = run("run", flags + " --steps 7 --resume auto");
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(content_of(path("run/wandb_id.txt")), id);
  EXPECT_EQ(column("run", "step"), (std::vector<std::string>{"1", "2", "3", "4", "5", "6", "7"}));
  // All rows are there once; the module is told of the steps that were made now.
  std::ofstream(path("run/told.jsonl"), std::ios::app);
  const std::string rows = content_of(path("logs/csv/Train_Samples_lr.csv"));
  EXPECT_EQ(std::ranges::count(rows, '\n'), 1 + 7) << rows;
  EXPECT_THAT(content_of(path("run/told.jsonl")), HasSubstr("\"step\": 20"));
  EXPECT_FALSE(fs::exists(path("logs/csv/earlier-1")));
  // A fresh run puts them aside.
  ASSERT_EQ(run("other", fmt::format("--deepspeed_config '{}' --steps 1", config(true))).code, 0);
  EXPECT_EQ(content_of(path("logs/csv/earlier-1/Train_Samples_lr.csv")), rows);
  EXPECT_TRUE(fs::exists(path("logs/tb/earlier-1")));
}

TEST_F(Monitors, TheExamplesFlagsFeedWandb) {
  const Finished fed = run("run",
                           "--steps 3 --use_wandb --wandb_project 'a \"b\"' "
                           "--wandb_run_name first --wandb_tags x y");
  ASSERT_EQ(fed.code, 0) << fed.err;
  EXPECT_THAT(content_of(path("run/told.jsonl")),
              AllOf(HasSubstr(R"("project": "a \"b\"")"), HasSubstr(R"("name": "first")"),
                    HasSubstr(R"("tags": ["x", "y"])"), HasSubstr(R"("step": 3)")));
}

TEST_F(Monitors, AModuleThatIsMissingCostsTheReportAlone) {
  write("modules/wandb.py", "raise ImportError(\"No module named 'wandb'\")\n");
  const Finished ended = run("run", "--steps 3 --use_wandb");
  EXPECT_EQ(ended.code, 6);
  EXPECT_THAT(ended.err,
              AllOf(HasSubstr("install it for the python3 of the PATH"),
                    HasSubstr("its process ended with exit code 1"), HasSubstr("the run goes on")));
  EXPECT_EQ(column("run", "step").size(), 3U);
  EXPECT_TRUE(fs::exists(path("run/model/model.safetensors")));
}

/// The current folder holds data, and Python files among data are not code of the trainer.
TEST_F(Monitors, ModulesOfTheCurrentFolderDoNotRun) {
  for (const char* name : {"json", "signal", "sitecustomize", "os", "wandb"}) {
    write(fmt::format("data/{}.py", name), fmt::format("open('{}', 'w')\n", path("RAN")));
  }
  for (const char* python_path : {"", ":", ".:", "::/nowhere"}) {
    fs::remove_all(path("run"));
    const Finished ended = shell(fmt::format(
        "cd '{0}' && PYTHONPATH='{1}:{2}' '{3}' --output_dir '{4}' --progress off --no-samples "
        "--lr 1e-3 --batch_size 4 --steps 2 --use_wandb",
        path("data"), python_path, path("modules"), kTrainer, path("run")));
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_FALSE(fs::exists(path("RAN"))) << python_path;
    EXPECT_THAT(content_of(path("run/told.jsonl")), HasSubstr("\"finished\""));
  }
}

TEST_F(Monitors, AFolderThatCannotBeWrittenIsRefusedAtTheStart) {
  write("logs", "a file");
  const Finished refused =
      run("run", fmt::format("--steps 2 --deepspeed_config '{}'", config(true)));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr(path("logs")));
}

TEST_F(Monitors, AModuleThatTakesNothingHoldsNothingUp) {
  write("modules/wandb.py", "import time\ntime.sleep(20)\n");
  ::setenv("PYTHONPATH", path("modules").c_str(), 1);
  WandbFeed feed({}, {.folder = folder_.string(), .patience_s = 0.2});
  ::unsetenv("PYTHONPATH");
  const auto begin = std::chrono::steady_clock::now();
  const std::string tag(1000, 't');
  EXPECT_THROW(for (int i = 0; i < 100'000; ++i) { feed.write(i, {{tag, 1.0}}); }, Error);
  EXPECT_THROW(feed.close(), Error);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
}

/// The steps of a second go together; close() leaves none out, a kill those that wait.
TEST_F(Monitors, RecordsGoTogetherAndNoneIsLost) {
  ::setenv("PYTHONPATH", path("modules").c_str(), 1);
  const auto told = [&](const char* folder, bool closed) {
    fs::create_directory(path(folder));
    auto feed = std::make_unique<WandbFeed>(WandbConfig{}, WandbRun{.folder = path(folder)});
    for (int i = 0; i < 50; ++i) {
      feed->write(i, {{"loss", 1.0 / (1 + i)}});
    }
    if (closed) {
      feed->close();
    }
    feed.reset();  // as the end of the process does
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    std::string text;
    while (!text.ends_with("\"finished\"\n") && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      text = content_of(path(folder) + "/told.jsonl");
    }
    EXPECT_THAT(text, ::testing::EndsWith("\"finished\"\n"));
    std::istringstream lines(text);
    int steps = 0;
    for (std::string line; std::getline(lines, line);) {
      steps += line.starts_with("{\"step\": ") ? 1 : 0;
    }
    return steps;
  };
  EXPECT_EQ(told("closed", true), 50);
  EXPECT_THAT(told("killed", false), AllOf(::testing::Ge(1), ::testing::Lt(50)))
      << "the first is sent at once";
  ::unsetenv("PYTHONPATH");
}

/// An offline run is not looked at while it goes on: its module is left alone meanwhile.
TEST_F(Monitors, AnOfflineModuleIsToldLater) {
  ::setenv("PYTHONPATH", path("modules").c_str(), 1);
  const auto steps_before_the_end = [&](const char* mode, std::string_view awaited) {
    ::setenv("WANDB_MODE", mode, 1);
    const std::string folder = path(mode);
    fs::create_directory(folder);
    WandbFeed feed(WandbConfig{}, WandbRun{.folder = folder});
    feed.write(0, {{"loss", 1.0}});
    std::string text;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (text.find(awaited) == std::string::npos && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      text = content_of(folder + "/told.jsonl");
    }
    feed.close();
    EXPECT_THAT(content_of(folder + "/told.jsonl"), HasSubstr("{\"step\": 0"));
    return text.find("{\"step\": 0") != std::string::npos;
  };
  EXPECT_TRUE(steps_before_the_end("online", "{\"step\": "));
  EXPECT_FALSE(steps_before_the_end("offline", "{\"init\": "));
  ::unsetenv("WANDB_MODE");
  ::unsetenv("PYTHONPATH");
}

/// The real module's own reader finds the steps, where it is installed.
TEST_F(Monitors, WandbsOfflineReaderReadsTheRun) {
  if (!test::python_has("wandb")) {
    GTEST_SKIP() << "no wandb in the project's .venv: .venv/bin/pip install wandb";
  }
  fs::remove_all(path("modules"));
  const Finished fed =
      shell(fmt::format("PATH=\"$(dirname '{}')\":\"$PATH\" '{}' --output_dir '{}' --progress off "
                        "--no-samples --lr 1e-3 --steps 5 --use_wandb --wandb_project p",
                        kPython, kTrainer, path("run")));
  ASSERT_EQ(fed.code, 0) << fed.err;
  const Finished read = shell(fmt::format("'{}' '{}' '{}'", kPython, write("offline.py", R"(
import glob, json, struct, sys
from wandb.proto import wandb_internal_pb2
(path,) = glob.glob(sys.argv[1] + "/wandb/offline-run-*/*.wandb")
data = open(path, "rb").read()
assert data[:4] == b":W&B", data[:8]
records, at, part = [], 7, b""  # LevelDB's log: blocks of 32 KiB, records in fragments
while at + 7 <= len(data):
    left = 32768 - at % 32768
    if left < 7:
        at += left
        continue
    _, length, kind = struct.unpack_from("<IHB", data, at)
    part += data[at + 7:at + 7 + length]
    at += 7 + length
    if kind in (1, 4):  # whole, or the last fragment
        record = wandb_internal_pb2.Record()
        record.ParseFromString(part)
        records.append(record)
        part = b""
losses = [json.loads(item.value_json) for record in records if record.HasField("history")
          for item in record.history.item if "train/loss" in (item.key, "/".join(item.nested_key))]
lines = [json.loads(line)["loss"] for line in open(sys.argv[1] + "/metrics.jsonl")]
assert losses == lines, (losses, lines)
print("read", len(losses))
)"),
                                          path("run")));
  EXPECT_THAT(read.out, HasSubstr("read 5")) << read.err;
}

}  // namespace
}  // namespace tandem
