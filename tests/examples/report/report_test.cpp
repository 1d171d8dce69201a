// `tandem report`: hostile names, damaged and absent files, long runs, and the page as a browser
// draws it.
#include <algorithm>
#include <string>
#include <vector>

#include <sys/stat.h>
#include <zlib.h>

#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::string_view kHostile = "</script><img src=x onerror=\"fail()\"><!--<script>";

std::string json_of(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += c == '"' ? "\\\"" : std::string(1, c);
  }
  return out;
}

class Report : public TrainerTest {
 protected:
  [[nodiscard]] Finished report(const std::string& arguments) const {
    return shell(
        fmt::format("cd '{}' && '{}/tandem' report {}", path(""), test::bin_dir(), arguments));
  }

  /// Steps 1..`steps` of a run; of the step `spike` the norm is 1000.
  void write_metrics(const std::string& run, int steps, int spike = 0) const {
    std::string text;
    for (int step = 1; step <= steps; ++step) {
      text += fmt::format(
          R"({{"step": {}, "loss": {}, "lr": 0.1, "grad_norm": {}, "tokens_per_s": 10, )"
          R"("step_time_s": 0.5, "exposed_gather_s": 0.25, "verdict": "{}", )"
          R"("speculated": true, "peak_host_bytes": 1048576}})"
          "\n",
          step, 1.0 / step, step == spike ? 1000 : 1, step == spike ? "rollback" : "commit");
    }
    write(run + "/metrics.jsonl", text);
  }
  /// All that a run can leave.
  void write_run(const std::string& run) const {
    write_metrics(run, 30, 12);
    std::ofstream(path(run + "/metrics.jsonl"), std::ios::app)
        << R"({"step": 10, "eval_loss": 2.5})" << "\n"
        << R"({"step": 30, "eval_loss": 1.5})" << "\n";
    write(run + "/summary.json",
          fmt::format(R"({{"ended": "{0}", "steps": 30, "memory": {{"host": {{)"
                      R"("predicted_bytes": 5, "actual_bytes": 6}}}}, "flags": {{"{0}": "{0}"}}}})",
                      json_of(kHostile)));
    write(run + "/memory_plan.json", R"({"rank": {"host": {"weights": 5, "total": 5}}})");
    write(run + "/resolved_config.json", fmt::format(R"({{"name": "{}"}})", json_of(kHostile)));
    write(run + "/config_keys.txt", fmt::format("a.b: \"{}\"  applied\n", kHostile));
    write(run + "/notes.txt", fmt::format("cores \x01\x1b[31m \xff {}\n", kHostile));
    write(
        run + "/comms.json",
        fmt::format(R"({{"world_size": 2, "left_out": 0, "rows": [{{"operation": "{}", )"
                    R"("ranks": 2, "message_bytes": 4096, "block_bytes": 8192, "count": 7, )"
                    R"("total_s": 0.5, "exposed_s": 0.25, "algorithm_gbps": 1, "bus_gbps": 2}}]}})",
                    json_of(kHostile)));
    write(run + "/flops_profile.json",
          fmt::format(
              R"({{"peak_tflops": 0.5, "model": {{"name": "model", "parameters": 100, )"
              R"("forward_flops": 2e9, "forward_s": 0.01, "backward_s": 0.02, "parts": )"
              R"([{{"name": "{}", "parameters": 100, "forward_flops": 2e9, "parts": []}}]}}}})",
              json_of(kHostile)));
    write(run + "/checkpoints/step-00000020/manifest.json", "{}");
    write(run + "/checkpoints/step-00000030/part", "half");
    write_trace(run);
  }
  void write_trace(const std::string& run) const {
    const gzFile file = gzopen(path(run + "/trace.json.gz").c_str(), "wb");
    gzputs(file, "{\"traceEvents\":[\n");
    gzputs(file, R"({"name":"thread_name","ph":"M","pid":1,"tid":2,"args":{"name":"compute"}},)"
                 "\n");
    for (int step = 0; step < 5; ++step) {
      gzputs(file, fmt::format("{{\"name\":\"step {0}\",\"ph\":\"i\",\"pid\":1,\"tid\":1,"
                               "\"ts\":{1},\"args\":{{\"step\":{0}}}}},\n"
                               "{{\"name\":\"forward {2}\",\"ph\":\"X\",\"pid\":1,\"tid\":2,"
                               "\"ts\":{3},\"dur\":40.5}},\n",
                               26 + step, 1000 + step * 100, json_of(kHostile), 1010 + step * 100)
                       .c_str());
    }
    gzputs(file, "]}\n");
    gzclose(file);
  }

  /// The data in a page; `parser` owns it.
  [[nodiscard]] static simdjson::dom::element data_in(simdjson::dom::parser& parser,
                                                      const std::string& page) {
    constexpr std::string_view kMark = "id=\"data\">";
    const std::size_t begin = page.find(kMark) + kMark.size();
    return parser.parse(page.substr(begin, page.find("</script>", begin) - begin))["runs"];
  }
  static std::size_t count(std::string_view text, std::string_view part) {
    std::size_t found = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; ++at) {
      ++found;
    }
    return found;
  }

  /// The page as a browser leaves it when its script has run.
  [[nodiscard]] std::string drawn(const std::string& page) const {
    const Finished done =
        shell(fmt::format("HOME='{}' timeout 100 chromium --headless --no-sandbox --disable-gpu "
                          "--virtual-time-budget=5000 --dump-dom 'file://{}'",
                          path(""), path(page)));
    EXPECT_EQ(done.code, 0) << done.err;
    return done.out;
  }
};

TEST_F(Report, HostileNamesStayData) {
  write_run("run");
  const Finished done = report("run");
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(done.out, "run/report.html\n");
  const std::string page = content_of(path("run/report.html"));
  EXPECT_EQ(count(page, "</script"), 2U) << "the data's and the script's";
  EXPECT_EQ(count(page, "<!--"), 0U);
  EXPECT_EQ(count(page, "<img"), 0U);
  EXPECT_EQ(count(page, "\x01"), 0U);
  simdjson::dom::parser parser;
  const simdjson::dom::element run = data_in(parser, page).at(0);
  EXPECT_EQ(std::string_view(run["summary"]["ended"]), kHostile) << "what a reader sees";
  EXPECT_EQ(std::string_view(run["config"]["name"]), kHostile);
  EXPECT_THAT(std::string(std::string_view(run["keys"].at(0))), HasSubstr(kHostile));
  EXPECT_THAT(std::string(std::string_view(run["trace"]["spans"].at(0).at(1))), EndsWith(kHostile));
  EXPECT_EQ(std::int64_t(run["trace"]["steps"].at(0)["step"]), 27)
      << "step 30 has no end in this trace";
  EXPECT_EQ(std::int64_t(run["verdicts"].at(0)["step"]), 12);
  EXPECT_TRUE(bool(run["checkpoints"].at(0)["whole"]));
  EXPECT_FALSE(bool(run["checkpoints"].at(1)["whole"]));
  EXPECT_EQ(count(page, "http://") + count(page, "https://"),
            count(page, "http://www.w3.org/2000/svg"))
      << "nothing to load";
}

TEST_F(Report, ARunThatWasCutOff) {
  write("run/metrics.jsonl",
        "{\"step\": 1, \"loss\": 2}\n{\"step\": 2, \"loss\": \"NaN\"}\n[\n{\"step\": 3, \"lo");
  write("run/summary.json", "{\"steps\":");
  ASSERT_EQ(report("run").code, 0);
  const std::string page = content_of(path("run/report.html"));
  simdjson::dom::parser parser;
  const simdjson::dom::element run = data_in(parser, page).at(0);
  EXPECT_EQ(std::int64_t(run["steps"]), 2);
  EXPECT_EQ(std::int64_t(run["not_finite"]), 1);
  EXPECT_EQ(std::int64_t(run["unread_lines"]), 2);
  EXPECT_TRUE(run["curves"]["loss"]["y"].at(1).is_null());
  EXPECT_TRUE(run["summary"].is_null());
  EXPECT_EQ(std::string_view(run["absent"].at(0)), "summary.json (damaged)");
}

TEST_F(Report, ASpikeOfOneStepIsSeenInALongRun) {
  write_metrics("run", 50'001, 33'333);
  ASSERT_EQ(report("run --output long.html").code, 0);
  const std::string page = content_of(path("long.html"));
  EXPECT_LT(page.size(), 1U << 20);
  simdjson::dom::parser parser;
  const simdjson::dom::element run = data_in(parser, page).at(0);
  EXPECT_EQ(std::int64_t(run["per_bucket"]), 51);
  const simdjson::dom::array steps = run["curves"]["grad_norm"]["x"];
  EXPECT_LE(steps.size(), 2000U);
  bool seen = false;
  std::int64_t before = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::int64_t step(steps.at(i));
    EXPECT_LT(before, step);
    before = step;
    seen |= step == 33'333 && double(run["curves"]["grad_norm"]["y"].at(i)) == 1000;
  }
  EXPECT_TRUE(seen);
}

TEST_F(Report, OneLineWhereThereIsNothingToShow) {
  write("empty/metrics.jsonl", "");
  write_run("run");
  for (const auto& [arguments, line] : std::vector<std::pair<std::string, std::string>>{
           {"nowhere", "error: [report] nowhere has no metrics.jsonl; "},
           {"run empty", "error: [report] empty/metrics.jsonl has no step; "},
           {"run --output no/where.html", "error: [report] cannot create no/where.html"},
           {"", "error: [flags] "}}) {
    const Finished done = report(arguments);
    EXPECT_EQ(done.code, 2) << arguments;
    EXPECT_THAT(done.err, StartsWith(line));
    EXPECT_EQ(std::ranges::count(done.err, '\n'), 1);
  }
}

// A folder of a stranger: its reader may read files that the stranger may not.
TEST_F(Report, NoLinkOrFifoOfAFolderIsRead) {
  write("private", "a secret of its reader\n");
  const std::vector<std::string> parts = {"notes.txt", "summary.json", "config_keys.txt",
                                          "trace.json.gz"};
  for (const bool links : {true, false}) {
    write_run("run");
    for (const std::string& part : parts) {
      fs::remove(path("run/" + part));
      if (links) {
        fs::create_symlink(path("private"), path("run/" + part));
      } else {
        ASSERT_EQ(::mkfifo(path("run/" + part).c_str(), 0600), 0);
      }
    }
    const Finished done = report("run");
    ASSERT_EQ(done.code, 0) << done.err;
    const std::string page = content_of(path("run/report.html"));
    EXPECT_EQ(count(page, "a secret of its reader"), 0U);
    simdjson::dom::parser parser;
    const simdjson::dom::element absent = data_in(parser, page).at(0)["absent"];
    EXPECT_EQ(simdjson::dom::array(absent).size(), parts.size());
    EXPECT_THAT(std::string(std::string_view(absent.at(0))),
                HasSubstr(links ? "it is a link" : "it is no ordinary file"));
  }
  for (const bool links : {true, false}) {
    fs::remove(path("run/metrics.jsonl"));
    if (links) {
      write_metrics("other", 3);
      fs::create_symlink(path("other/metrics.jsonl"), path("run/metrics.jsonl"));
    } else {
      ASSERT_EQ(::mkfifo(path("run/metrics.jsonl").c_str(), 0600), 0);
    }
    const Finished refused = report("run");
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr(links ? "metrics.jsonl: it is a link"
                                             : "metrics.jsonl: it is no ordinary file"));
  }
}

TEST_F(Report, WhatNoRunWritesCostsItsPartAlone) {
  write("run/metrics.jsonl",
        "{\"step\": 9007199254740992, \"loss\": 1}\n{\"step\": -5, \"loss\": 1}\n" +
            std::string((1 << 20) + 1, 'x') + "\n{\"step\": 1, \"loss\": 2}\n" +
            "{\"step\": 9007199254740991, \"loss\": 1}\n");
  write("run/summary.json", "[1, 2]");
  write("run/comms.json", "5");
  const auto write_gz = [&](const std::string& text) {
    const gzFile file = gzopen(path("run/trace.json.gz").c_str(), "wb");
    gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    gzclose(file);
  };
  const auto run_of = [&](simdjson::dom::parser& parser) {
    EXPECT_EQ(report("run").code, 0);
    return data_in(parser, content_of(path("run/report.html"))).at(0);
  };
  const std::string mark = R"({"ph":"i","pid":1,"tid":1,"ts":%,"args":{"step":#}},)";
  const auto event = [&](const std::string& ts, const std::string& step) {
    return mark.substr(0, mark.find('%')) + ts +
           mark.substr(mark.find('%') + 1, mark.find('#') - mark.find('%') - 1) + step + "}},\n";
  };
  simdjson::dom::parser parser;
  // A zero byte at a line's begin, a step without a next one, times and threads of no trace.
  write_gz(
      std::string("\0\0\0\n\n", 5) + "[\n" + event("0", "1") + event("10", "9223372036854775807") +
      event("20", "2") + event("1e300", "3") +
      R"({"ph":"M","name":"thread_name","pid":1e300,"tid":-1e300,"args":{"name":"compute"}},)" +
      "\n");
  simdjson::dom::element run = run_of(parser);
  EXPECT_EQ(std::int64_t(run["steps"]), 2);
  EXPECT_EQ(std::int64_t(run["unread_lines"]), 3);
  EXPECT_TRUE(run["summary"].is_null());
  EXPECT_EQ(simdjson::dom::array(run["trace"]["steps"]).size(), 2U);
  write_gz(event("0", "1") + std::string((1 << 20) + 1, 'x') + "\n" + event("10", "2"));
  run = run_of(parser);
  EXPECT_TRUE(run["trace"].is_null());
  bool is_said = false;
  for (const std::string_view absent : run["absent"].get_array()) {
    is_said |= absent.find("has lines of more than 1 MiB") != std::string_view::npos;
  }
  EXPECT_TRUE(is_said);
}

TEST_F(Report, ABrowserDrawsEveryPanel) {
  if (shell("command -v chromium").code != 0) {
    GTEST_SKIP() << "no chromium here; apt-get install chromium";
  }
  write_run("one");
  write_run("two");
  write("cut/metrics.jsonl", "{\"step\": 1, \"loss\": 2}\n");
  ASSERT_EQ(report("one two --output full.html").code, 0);
  const std::string full = drawn("full.html");
  EXPECT_THAT(full, Not(HasSubstr("data-error=")));
  EXPECT_THAT(full, HasSubstr("data-panels=\"19\""));
  EXPECT_EQ(count(full, "data-drawn=\"yes\""), 19U) << full.substr(full.find("<main"));
  EXPECT_EQ(count(full, "<img"), 0U) << "a name became HTML";
  EXPECT_GE(count(full, "stroke-width=\"1.4\""), 2U * 8) << "a line per run and figure";
  EXPECT_THAT(full, HasSubstr("<td>4 KiB</td><td>7</td><td>500</td>")) << "of comms_logger";
  EXPECT_THAT(full, HasSubstr("<td>200</td><td>40.0 %</td>")) << "GFLOP/s, of 0.5 TFLOPS";

  // Files of other types, and steps beyond which a page's numbers are not exact.
  write("odd/metrics.jsonl",
        "{\"step\": 9007199254740990, \"loss\": 2}\n"
        "{\"step\": 9007199254740991, \"loss\": 1}\n");
  write("odd/comms.json", R"({"rows": 5})");
  write("odd/flops_profile.json", R"({"model": {"parts": 5}})");
  write("odd/memory_plan.json", R"({"rank": {"host": "x"}})");
  write("odd/summary.json", R"({"memory": 5, "flags": "abc"})");
  ASSERT_EQ(report("odd").code, 0);
  const std::string odd = drawn("odd/report.html");
  EXPECT_THAT(odd, HasSubstr("data-panels=\"19\""));
  EXPECT_THAT(odd, Not(HasSubstr("data-error=")));

  ASSERT_EQ(report("cut").code, 0);
  const std::string cut = drawn("cut/report.html");
  EXPECT_THAT(cut, Not(HasSubstr("data-error=")));
  EXPECT_THAT(cut, HasSubstr("data-panels=\"19\""));
  EXPECT_EQ(count(cut, "data-drawn=\"yes\""), 2U) << "loss and speculation";
  EXPECT_EQ(count(cut, "data-drawn=\"empty\""), 17U);
}

// A page of three runs has a colour per figure, a dash and a column of the summary per run.
TEST_F(Report, SeveralRunsAreReadSideBySide) {
  if (shell("command -v node").code != 0) {
    GTEST_SKIP() << "no node here; apt-get install nodejs";
  }
  for (const char* run : {"a", "b", "c"}) {
    write_run(run);
    write(fmt::format("{}/summary.json", run),
          fmt::format(R"({{"ended": "done", "steps": 30, "mfu": null, "note": "of {0}", )"
                      R"("flags": {{"--seed": "{0}7"}}}})",
                      run));
  }
  ASSERT_EQ(report("a b c --output page.html").code, 0);
  const auto read = [&](const std::string& section, const std::string& tag) {
    const Finished done = shell(fmt::format("node '{}/tests/tools/report_page.js' '{}' {} {}",
                                            test::source_dir(), path("page.html"), section, tag));
    EXPECT_EQ(done.code, 0) << done.err;
    return done.out;
  };
  const std::string summary = read("summary", "tr");
  EXPECT_THAT(summary, StartsWith("figure | a | b | c\n"));
  EXPECT_THAT(summary, HasSubstr("\nnote | of a | of b | of c\n"));
  EXPECT_THAT(summary, HasSubstr("\nmfu | none | none | none\n"));
  EXPECT_THAT(read("flags", "tr"), HasSubstr("\n--seed | a7 | b7 | c7\n"));
  const std::string exposed = read("exposed", "div");
  EXPECT_EQ(count(exposed, "gather"), 1U) << "one entry for the three runs' lines: " << exposed;
  EXPECT_THAT(exposed, HasSubstr(" a   |  |  b   |  |  c  "));
}

TEST_F(Report, APointerReadsAndZoomsCurves) {
  if (shell("command -v chromium").code != 0) {
    GTEST_SKIP() << "no chromium here; apt-get install chromium";
  }
  write_metrics("run", 101);
  ASSERT_EQ(report("run").code, 0);
  // Over the middle of the loss, then from a quarter to the half; the norm's axis tells the steps.
  constexpr std::string_view kPointer = R"(<script>
Element.prototype.setPointerCapture = () => {};  // of a pointer that is not there
const loss = document.querySelector('#loss svg'), box = loss.getBoundingClientRect();
const point = (type, share) => loss.dispatchEvent(new PointerEvent(type, {
  clientX: box.left + box.width * (62 + share * 488) / 560, clientY: box.top + 20}));
const axis = () => [...document.querySelectorAll('#norm svg text')].map((t) => t.textContent);
point('pointermove', .5);
document.body.dataset.read = document.getElementById('tip').textContent;
point('pointerdown', .25); point('pointermove', .5); point('pointerup', .5);
document.body.dataset.zoomed = axis().filter((t) => +t > 10).join(' ');
loss.dispatchEvent(new MouseEvent('dblclick'));
document.body.dataset.all = axis().filter((t) => +t > 10).join(' ');
</script>)";
  write("pointed.html", content_of(path("run/report.html")) + std::string(kPointer));
  const std::string page = drawn("pointed.html");
  EXPECT_THAT(page, Not(HasSubstr("data-error=")));
  EXPECT_THAT(page, HasSubstr("data-read=\"step 51  0.019608   run\""));
  EXPECT_THAT(page, HasSubstr("data-zoomed=\"30 35 40 45 50\""));
  EXPECT_THAT(page, HasSubstr("data-all=\"20 40 60 80 100\""));
}

}  // namespace
}  // namespace tandem
