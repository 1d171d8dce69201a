// The files that a run leaves on disk: whole lines at any moment, TensorBoard events that
// TensorBoard reads, clear errors.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actors/storage/file.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/faults/file_size_limit.hpp"
#include "tests/support/process/paths.hpp"
#include "trainer/metrics/metrics_writer.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

/// The message and exit code of the Error that `body` ends with.
template <class Body>
std::pair<std::string, ExitCode> error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return {error.what(), error.code()};
  }
  return {"no error", ExitCode::kDone};
}

class MetricsFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::path(testing::TempDir()) / fmt::format("{}_{}", info->name(), ::getpid());
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  [[nodiscard]] MetricsOptions options() const {
    return {.output_dir = (dir_ / "run").string(), .progress = ProgressMode::kOff};
  }

  fs::path dir_;
};

TEST_F(MetricsFiles, OneLinePerStepAndASummary) {
  {
    MetricsWriter writer(options());
    writer.write_config("{}\n", {"train_batch_size: 4  applied"});
    for (std::int64_t step = 1; step <= 3; ++step) {
      writer.write({.step = step, .loss = 1.0 / static_cast<double>(step), .step_time_s = 1});
      const std::string lines = content_of(dir_ / "run/metrics.jsonl");
      EXPECT_EQ(std::ranges::count(lines, '\n'), step) << "flushed with the step";
      EXPECT_THAT(lines, EndsWith("}\n"));
    }
    writer.finish(writer.summary());
  }
  EXPECT_THAT(content_of(dir_ / "run/metrics.jsonl"), HasSubstr("\"loss\": 0.3333333333333333,"));
  EXPECT_THAT(content_of(dir_ / "run/summary.json"), HasSubstr("\"steps\": 3,"));
  EXPECT_EQ(content_of(dir_ / "run/resolved_config.json"), "{}\n");
}

TEST_F(MetricsFiles, APageThatCannotBeWrittenIsALostReport) {
  MetricsWriter writer(options());
  writer.write({.step = 1});
  fs::create_directories(dir_ / "run/report.html/in its place");
  writer.finish(writer.summary());
  EXPECT_FALSE(writer.lost());
  writer.write_page();
  EXPECT_THAT(writer.artefacts_line(), EndsWith("lost: report.html"));
}

TEST_F(MetricsFiles, AResumedRunAppendsAndAFreshOneStartsOver) {
  MetricsOptions resumed = options();
  resumed.append = true;
  MetricsWriter(options()).write({.step = 1});
  MetricsWriter(resumed).write({.step = 2});
  EXPECT_EQ(std::ranges::count(content_of(dir_ / "run/metrics.jsonl"), '\n'), 2);
  MetricsWriter(options()).write({.step = 1});
  EXPECT_EQ(std::ranges::count(content_of(dir_ / "run/metrics.jsonl"), '\n'), 1);
}

TEST_F(MetricsFiles, WhatAnEarlierRunLeftStaysUntilTheFirstStep) {
  {
    MetricsWriter earlier(options());
    earlier.write({.step = 1});
    earlier.write({.step = 2});
    earlier.finish(earlier.summary());
  }
  MetricsWriter writer(options());
  EXPECT_EQ(std::ranges::count(content_of(dir_ / "run/metrics.jsonl"), '\n'), 2);
  EXPECT_TRUE(fs::exists(dir_ / "run/summary.json"));
  writer.write({.step = 1});
  EXPECT_EQ(std::ranges::count(content_of(dir_ / "run/metrics.jsonl"), '\n'), 1);
  EXPECT_FALSE(fs::exists(dir_ / "run/summary.json"));
}

TEST_F(MetricsFiles, ALinkInTheirPlaceIsNotFollowed) {
  std::ofstream(dir_ / "other") << "of another user";
  fs::create_directories(dir_ / "run");
  fs::create_symlink(dir_ / "other", dir_ / "run/metrics.jsonl");
  const auto [message, code] = error_of([&] { MetricsWriter writer(options()); });
  EXPECT_THAT(message, HasSubstr("metrics.jsonl"));
  EXPECT_EQ(code, ExitCode::kUserInput);
  EXPECT_EQ(content_of(dir_ / "other"), "of another user");
}

TEST_F(MetricsFiles, AFolderThatWasRemovedIsALostReport) {
  testing::internal::CaptureStderr();
  MetricsWriter writer(options());
  writer.write({.step = 1});
  fs::remove_all(dir_ / "run");
  writer.write({.step = 2});
  writer.finish(writer.summary());
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(writer.lost());
  EXPECT_THAT(said, HasSubstr("metrics.jsonl was removed or moved"));
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
  EXPECT_TRUE(fs::exists(dir_ / "run/summary.json")) << "what can be written is";
}

TEST_F(MetricsFiles, AnOutputDirectoryThatCannotBeIsTheUsersError) {
  std::ofstream(dir_ / "file") << "x";
  for (const std::string& path :
       {(dir_ / "file/run").string(), (dir_ / "file").string(), std::string("/proc/no/such")}) {
    const auto [message, code] = error_of([&] { make_output_dir(path); });
    EXPECT_THAT(message, AllOf(HasSubstr(path), HasSubstr("output folder")));
    EXPECT_EQ(code, ExitCode::kUserInput);
  }
}

TEST_F(MetricsFiles, AFullDiskLeavesWholeLines) {
  // A file size limit ends a write in the middle, as a full disk does.
  const pid_t child = ::fork();
  if (child == 0) {
    MetricsOptions limited = options();
    limited.tensorboard = false;
    MetricsWriter writer(limited);
    std::freopen((dir_ / "stderr").c_str(), "w", stderr);
    const test::FileSizeLimit limit(1000);
    for (std::int64_t step = 1; step < 100; ++step) {
      writer.write({.step = step});
    }
    const bool lost = writer.lost() && writer.artefacts_line().ends_with("lost: metrics.jsonl");
    ::_exit(lost && writer.summary().steps == 99 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << "the run goes on, and knows that something is lost";
  const std::string said = content_of(dir_ / "stderr");
  EXPECT_THAT(said, HasSubstr("metrics.jsonl: File too large"));
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
  const std::string lines = content_of(dir_ / "run/metrics.jsonl");
  EXPECT_GT(lines.size(), 300U);
  EXPECT_THAT(lines, EndsWith("}\n"));
}

TEST_F(MetricsFiles, ADeviceWithoutSpaceIsAClearError) {
  LineFile full("/dev/full", true);
  const auto [message, code] = error_of([&] { full.append_line("x"); });
  EXPECT_THAT(message, HasSubstr("No space left on device"));
  EXPECT_EQ(code, ExitCode::kFailure);
}

TEST_F(MetricsFiles, AWholeFileThatFailsLeavesTheOldOne) {
  const std::string path = (dir_ / "summary.json").string();
  write_file(path, "metrics", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    const test::FileSizeLimit limit(10);
    const auto [message, code] =
        error_of([&] { write_file(path, "metrics", std::string(100, 'n')); });
    ::_exit(code == ExitCode::kFailure ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(content_of(path), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), fs::directory_iterator{}), 1)
      << "nothing is left behind";
}

TEST(EventFile, ChecksumsAreCastagnoli) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU) << "RFC 3720, B.4";
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
}

TEST(EventFile, BytesOfAScalarEvent) {
  // wall_time 1.0; step 300 (varint AC 02); summary{value{tag "a", simple_value 0.5}}
  const std::string expected(
      "\x09\x00\x00\x00\x00\x00\x00\xF0\x3F"
      "\x10\xAC\x02"
      "\x2A\x0A\x0A\x08\x0A\x01"
      "a\x15\x00\x00\x00\x3F",
      24);
  EXPECT_EQ(scalar_event(1.0, 300, {{"a", 0.5}}), expected);
}

TEST(EventFile, RecordsAreFramedWithMaskedChecksums) {
  const std::string record = tfrecord("abc");
  ASSERT_EQ(record.size(), 8U + 4U + 3U + 4U);
  EXPECT_EQ(record.substr(0, 8), std::string("\x03\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 3), "abc");
  const auto masked = [](std::string_view bytes) {
    return std::rotr(crc32c(bytes), 15) + 0xA282EAD8U;
  };
  std::uint32_t stored = 0;
  std::memcpy(&stored, record.data() + 8, sizeof(stored));
  EXPECT_EQ(stored, masked(record.substr(0, 8)));
  std::memcpy(&stored, record.data() + 15, sizeof(stored));
  EXPECT_EQ(stored, masked("abc"));
}

TEST_F(MetricsFiles, TensorBoardReadsTheEvents) {
  const std::string python = test::source_path(".venv/bin/python");
  if (std::system((python + " -c 'import tensorboard' 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << "no tensorboard in the project's .venv (./tandem test installs it)";
  }
  {
    MetricsWriter writer(options());
    for (std::int64_t step = 1; step <= 200; ++step) {
      writer.write({.step = step, .loss = 1.0 / static_cast<double>(step), .lr = 0.5});
    }
  }
  const fs::path script = dir_ / "read.py";
  std::ofstream(script) << R"(
import struct, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0}).Reload()
loss = events.Scalars("train/loss")
assert [e.step for e in loss] == list(range(1, 201)), len(loss)
single = lambda x: struct.unpack("f", struct.pack("f", x))[0]
assert all(e.value == single(1 / e.step) for e in loss)
assert all(e.value == 0.5 for e in events.Scalars("train/learning_rate"))
assert loss[0].wall_time > 1e9
print("read", len(events.Tags()["scalars"]))
)";
  const std::string output = (dir_ / "output").string();
  const std::string command = fmt::format("'{}' '{}' '{}' > '{}' 2>&1", python, script.string(),
                                          (dir_ / "run").string(), output);
  EXPECT_EQ(std::system(command.c_str()), 0) << content_of(output);
  EXPECT_THAT(content_of(output), HasSubstr("read 13"));
}

TEST_F(MetricsFiles, NoControlCharactersOutsideATerminal) {
  const std::string path = (dir_ / "log").string();
  std::FILE* log = std::fopen(path.c_str(), "w");
  {
    Console console(ProgressMode::kBar, 4, 2, log, log);
    for (std::int64_t step = 1; step <= 4; ++step) {
      console.step({.step = step});
    }
    console.note("done");
  }
  std::fclose(log);
  const std::string text = content_of(path);
  EXPECT_THAT(text, AllOf(Not(HasSubstr("\r")), Not(HasSubstr("\x1b")), EndsWith("done\n")));
  EXPECT_EQ(std::ranges::count(text, '\n'), 3) << "steps 2 and 4 and the note";
}

TEST_F(MetricsFiles, WithoutAnIntervalThereAreNotesOnly) {
  const std::string path = (dir_ / "log").string();
  std::FILE* log = std::fopen(path.c_str(), "w");
  {
    Console console(ProgressMode::kLines, 4, 0, log, log);
    for (std::int64_t step = 1; step <= 4; ++step) {
      console.step({.step = step});
    }
    console.note("done");
  }
  std::fclose(log);
  EXPECT_EQ(content_of(path), "done\n");
}

TEST_F(MetricsFiles, ATerminalGetsABarBelowTheLines) {
  ::setenv("TERM", "xterm", 1);
  int leader = -1;
  int follower = -1;
  ASSERT_EQ(::openpty(&leader, &follower, nullptr, nullptr, nullptr), 0);
  std::FILE* terminal = ::fdopen(follower, "w");
  {
    Console console(ProgressMode::kAuto, 4, 1, terminal, terminal);
    console.step({.step = 1});
  }
  std::fclose(terminal);
  // The text stays readable after the close; at its end a read fails (EIO).
  std::string shown;
  std::array<char, 256> part{};
  for (ssize_t size = 0; (size = ::read(leader, part.data(), part.size())) > 0;) {
    shown.append(part.data(), static_cast<std::size_t>(size));
  }
  ::close(leader);
  EXPECT_THAT(shown,
              AllOf(HasSubstr("Step    1 | Loss"), HasSubstr("1/4  25%"), EndsWith("\r\x1b[K")));
  EXPECT_LE(shown.find('\n'), 80U + 1)
      << "with its return: one that does not know its width has 80";
}

}  // namespace
}  // namespace tandem
