// A config's comms_logger, flops_profiler and wall_clock_breakdown, as the trainers' users see
// them: on the console, in the run's folder, among the monitors' tags. No digit changes.
#include <algorithm>
#include <set>

#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

/// TensorBoard's own reader finds in LOGS what the CSV files have, under the same tags.
constexpr std::string_view kRead = R"(
import csv, glob, os, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
logs = sys.argv[1]
events = EventAccumulator(os.path.join(logs, "tb"), size_guidance={"scalars": 0}).Reload()
tags = events.Tags()["scalars"]
files = [os.path.join(logs, "csv", tag.replace("/", "_") + ".csv") for tag in tags]
assert sorted(files) == sorted(glob.glob(os.path.join(logs, "csv", "*.csv"))), tags
for tag, file in zip(tags, files):
    rows = list(csv.reader(open(file, newline="")))[1:]
    read = [(event.step, event.value) for event in events.Scalars(tag)]
    assert [step for step, _ in read] == [int(step) for step, _ in rows], tag
    assert all(abs(value - float(row)) <= 1e-6 * abs(value) for (_, value), (_, row) in zip(read, rows)), tag
print(len(tags), "tags agree")
)";

class Blocks : public TrainerTest {
 protected:
  [[nodiscard]] std::string config(bool on) const {
    return write(on ? "on.json" : "off.json", fmt::format(R"({{
"train_batch_size": 4, "zero_optimization": {{"stage": 3}}, "steps_per_print": 2,
"csv_monitor": {{"enabled": {0}, "output_path": "{1}", "job_name": "csv"}},
"tensorboard": {{"enabled": {0}, "output_path": "{1}", "job_name": "tb"}},
"comms_logger": {{"enabled": {0}}},
"flops_profiler": {{"enabled": {0}, "profile_step": 3, "output_file": "{1}/profile.txt"}},
"wall_clock_breakdown": {0}}})",
                                                          on, path("logs")));
  }
  [[nodiscard]] Finished run(int ranks, const std::string& output, bool on) const {
    return shell(
        fmt::format("'{}/tandem' launch -n {} -- '{}' --output_dir '{}' --progress off "
                    "--no-samples --no-tensorboard --lr 1e-3 --steps 4 --batch_size {} "
                    "--deepspeed_config '{}'",
                    test::bin_dir(), ranks, kTrainer, path(output), 4 / ranks, config(on)));
  }
  [[nodiscard]] simdjson::dom::element read(simdjson::dom::parser& parser,
                                            const std::string& file) const {
    return parser.parse(content_of(path(file)));
  }
};

TEST_F(Blocks, ActOnTwoRanksAndChangeNoDigit) {
  const Finished off = run(2, "off", false);
  ASSERT_EQ(off.code, 0) << off.err;
  EXPECT_FALSE(fs::exists(path("off/comms.json")) || fs::exists(path("off/flops_profile.json")));
  EXPECT_THAT(off.out, AllOf(Not(HasSubstr("time (ms)")), Not(HasSubstr("Comm. Op"))));
  const Finished on = run(2, "on", true);
  ASSERT_EQ(on.code, 0) << on.err;
  for (const char* name : {"loss", "grad_norm", "lr"}) {
    EXPECT_EQ(column("on", name), column("off", name)) << name;
  }
  EXPECT_THAT(on.out,
              AllOf(HasSubstr("time (ms) | fwd_microstep: "), HasSubstr("time (ms) | fwd: "),
                    HasSubstr("Comm. Op  "), HasSubstr("Breakdown with straggler effect")));
  simdjson::dom::parser parser;
  std::set<std::string_view> operations;
  for (const simdjson::dom::element row : read(parser, "on/comms.json")["rows"].get_array()) {
    operations.insert(std::string_view(row["operation"]));
    EXPECT_GT(std::int64_t(row["count"]), 0);
    EXPECT_LE(double(row["exposed_s"]), double(row["total_s"]) * 1.000001);
    EXPECT_GE(double(row["straggler_s"]), 0);
  }
  EXPECT_EQ(operations, (std::set<std::string_view>{"all_gather", "all_gather_into_tensor",
                                                    "all_reduce", "reduce_scatter_tensor"}));
  const std::string profile = content_of(path("logs/profile.txt"));
  EXPECT_THAT(profile, AllOf(HasSubstr("Profile Summary at step 3:"),
                             ContainsRegex("world size:  +2 "), HasSubstr("  (block 0): block(\n"),
                             HasSubstr("    (self_attn): self_attn(\n")));
  simdjson::dom::parser other;
  const simdjson::dom::element flops = read(other, "on/flops_profile.json");
  EXPECT_EQ(std::int64_t(flops["step"]), 3);
  double sum = 0;
  for (const simdjson::dom::element part : flops["model"]["parts"].get_array()) {
    sum += double(part["forward_flops"]);
  }
  EXPECT_EQ(sum, double(flops["model"]["forward_flops"]));
  EXPECT_GT(double(flops["peak_tflops"]), 0);
  for (const char* timer :
       {"forward", "backward", "backward_inner", "backward_allreduce", "step"}) {
    const std::string rows =
        content_of(path(fmt::format("logs/csv/Train_Samples_elapsed_time_ms_{}.csv", timer)));
    EXPECT_EQ(std::ranges::count(rows, '\n'), 1 + 4) << timer;
    EXPECT_THAT(rows, ContainsRegex(fmt::format("^step,elapsed_time_ms_{}\n4,[0-9.e-]+\n", timer)));
  }
  if (test::python_has("tensorboard")) {
    const Finished found =
        shell(fmt::format("'{}' '{}' '{}'", kPython, write("read.py", kRead), path("logs")));
    EXPECT_THAT(found.out, HasSubstr("7 tags agree")) << found.err;
  }
  const std::string page = content_of(path("on/report.html"));
  EXPECT_TRUE(page.find(R"("comms": {"world_size":2)") != std::string::npos);
  EXPECT_TRUE(page.find(R"("flops": {"step":3)") != std::string::npos);
}

TEST_F(Blocks, AFreshRunPutsTheFilesAside) {
  ASSERT_EQ(run(1, "run", true).code, 0);
  const Finished again = run(1, "run", false);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_FALSE(fs::exists(path("run/flops_profile.json")));
  EXPECT_TRUE(fs::exists(path("run/earlier-1/flops_profile.json")));
}

TEST_F(Blocks, ActForCifar) {
  const std::string file = config(true);
  const auto cifar = [&](const std::string& output, const std::string& more) {
    return shell(
        fmt::format("TANDEM_CACHE='{}' '{}/tandem' launch -n 2 -- '{}/cifar10' --dtype "
                    "fp32 --stage 3 --steps 4 --no-tensorboard --output_dir '{}' {}",
                    path("no cache"), test::bin_dir(), test::bin_dir(), path(output), more));
  };
  const Finished off = cifar("off", "");
  ASSERT_EQ(off.code, 0) << off.err;
  const Finished on = cifar("on", fmt::format("--deepspeed_config '{}'", write("cifar.json", R"({
"train_batch_size": 16, "wall_clock_breakdown": true, "comms_logger": {"enabled": true},
"flops_profiler": {"enabled": true, "profile_step": 2}})")));
  ASSERT_EQ(on.code, 0) << on.err;
  EXPECT_THAT(on.out, AllOf(HasSubstr("Profile Summary at step 2:"), HasSubstr("(conv1): conv("),
                            HasSubstr("time (ms) | fwd: "), HasSubstr("reduce_scatter_tensor\n")));
  EXPECT_TRUE(fs::exists(path("on/comms.json")));
}

}  // namespace
}  // namespace tandem
