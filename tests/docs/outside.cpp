// Snippets of docs/runtime.md: threads, files, time, traces. tools/docs_in_step.py keeps the page
// equal to this.
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <tandem/runtime/completion.hpp>
#include <tandem/runtime/compute_lane.hpp>
#include <tandem/runtime/cpu_pool.hpp>
#include <tandem/runtime/event_loop.hpp>
#include <tandem/runtime/io/file_io.hpp>
#include <tandem/runtime/sleep.hpp>
#include <tandem/runtime/trace.hpp>
#include <tandem/runtime/trace_file.hpp>

namespace {

using namespace std::chrono_literals;
using tandem::Task;

// [pool]
Task<double> sum_of(tandem::CpuPool* pool, const std::vector<double>* values) {
  constexpr std::size_t kChunk = 1000;
  const std::size_t chunks = (values->size() + kChunk - 1) / kChunk;
  std::vector<double> sums(chunks);
  co_await pool->for_chunks(chunks, [&](std::size_t chunk) {  // several threads at a time
    const std::size_t begin = chunk * kChunk;
    const std::size_t end = std::min(begin + kChunk, values->size());
    for (std::size_t i = begin; i < end; ++i) {
      sums[chunk] += (*values)[i];
    }
  });
  co_return std::accumulate(sums.begin(), sums.end(),
                            0.0);  // the same order for any number of threads
}
// [/pool]

// [lane]
Task<int> on_a_thread_of_its_own(tandem::ComputeLane* lane) {
  // A library that wants to be called from one thread only lives on a lane.
  co_return co_await lane->run([] { return 6 * 7; });
}
// [/lane]

// [completion]
Task<int> from_another_thread() {
  tandem::Completion<int> done(tandem::EventLoop::current());
  std::thread other([&done] { done.set_value(42); });  // any thread, once
  const int value = co_await done;
  other.join();
  co_return value;
}
// [/completion]

// [files]
/// Either the old content is there or the new one, whatever happens in between.
Task<> replace_file(tandem::FileIo* files, std::string path, std::string text) {
  const std::string temporary = path + ".tmp";
  tandem::IoFile file = co_await files->open(temporary, tandem::OpenMode::kCreate);
  co_await files->write(file, 0, std::as_bytes(std::span(text)));
  co_await files->fsync(file);
  co_await files->close(std::move(file));
  co_await files->rename(temporary, path);
}

Task<std::string> first_bytes(tandem::FileIo* files, std::string path, std::size_t count) {
  const tandem::IoFile file = co_await files->open(path, tandem::OpenMode::kRead);
  std::string text(count, '\0');
  text.resize(co_await files->read(file, 0, std::as_writable_bytes(std::span(text))));
  co_return text;
}
// [/files]

// [trace]
void traced(tandem::EventLoop& loop, const std::string& path) {
  tandem::trace::enable();
  loop.run([]() -> Task<> {
    {
      const tandem::TraceSpan span("shuffle");  // within one resumption: not across a co_await
    }
    co_await tandem::sleep_for(1ms);
  });
  tandem::trace::disable();
  tandem::trace::write_chrome_json(path);  // open it in ui.perfetto.dev
}
// [/trace]

// [clock]
TEST(Reminder, ComesAfterAnHour) {
  tandem::ManualClock clock;  // jumps to the next timer as soon as nothing else is left to do
  tandem::EventLoop loop({.name = "test", .clock = &clock});
  loop.run([]() -> Task<> { co_await tandem::sleep_for(1h); });
  EXPECT_EQ(clock.now(), tandem::TimePoint(1h));
}
// [/clock]

TEST(DocsOutside, ThreadsAnswer) {
  tandem::EventLoop loop;
  tandem::CpuPool pool(loop, {.threads = 2});
  tandem::ComputeLane lane(loop, "lane");
  const std::vector<double> values(12'345, 1.0);
  EXPECT_EQ(loop.run(&sum_of, &pool, &values), 12'345);
  EXPECT_EQ(loop.run(&on_a_thread_of_its_own, &lane), 42);
  EXPECT_EQ(loop.run(&from_another_thread), 42);
}

TEST(DocsOutside, FilesAndTracesAreWritten) {
  const std::string path = testing::TempDir() + "tandem_docs_snippet";
  tandem::EventLoop loop;
  tandem::FileIo files(loop);
  loop.run(&replace_file, &files, path, std::string("old"));
  loop.run(&replace_file, &files, path, std::string("new text"));
  EXPECT_EQ(loop.run(&first_bytes, &files, path, std::size_t{100}), "new text");
  traced(loop, path);
  EXPECT_NE(loop.run(&first_bytes, &files, path, std::size_t{100'000}).find("shuffle"),
            std::string::npos);
  std::filesystem::remove(path);
}

}  // namespace
