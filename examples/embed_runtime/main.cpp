// examples/embed_runtime — the actor runtime in a program of its own: statistics of a request log
// of any size.
//
//   embed_runtime --generate 2000000 requests.csv      writes a log, then reads it
//   embed_runtime --deadline 2s requests.csv           what can be said within two seconds
//
// A line is `time_ms,route,status,bytes,latency_us`; the table has one row per route. Three stages,
// each bounded:
//
//   reader --Block--> Parser (its chunks on the CPU pool) --Rows--> Totals
//
// Reading is quicker than parsing, so the parser's mailbox fills up and `co_await send` holds the
// reader back: memory is some blocks, whatever the file's size. A deadline, SIGINT or SIGTERM stop
// the reader only; what was read is counted. Read it from main() upward, or the stages first.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flags.hpp"
#include "request_log.hpp"
#include <fmt/format.h>
#include <tandem/runtime/actor.hpp>
#include <tandem/runtime/cpu_pool.hpp>
#include <tandem/runtime/event_loop.hpp>
#include <tandem/runtime/io/file_io.hpp>
#include <tandem/runtime/io/signals.hpp>
#include <tandem/runtime/scope.hpp>
#include <tandem/runtime/system/machine.hpp>
#include <unistd.h>

namespace {

using namespace tandem;  // NOLINT: an example reads better so

constexpr std::size_t kBlockBytes = 256 << 10;  // also the longest line
constexpr std::uint32_t kBlocksWaiting = 4;  // credits of a mailbox: blocks on their way to a stage

struct AddRows {
  Rows rows;
};
struct Result {
  using Reply = Rows;
};
/// Adds up what the parser found, per route.
struct Totals : Actor<Totals, AddRows, Result> {
  Totals() : Actor("totals", kBlocksWaiting) {}
  void handle(AddRows m) {
    for (const auto& [route, stats] : m.rows) {
      rows[route].add(stats);
    }
  }
  Rows handle(Result) { return rows; }
  Rows rows;
};

struct Block {
  std::string lines;
};
struct Flush {  // answered when all blocks before it are parsed and handed on
  using Reply = void;
};
/// Cuts a block at line ends, one piece per thread of the pool, and hands the rows on.
struct Parser : Actor<Parser, Block, Flush> {
  Parser(CpuPool& workers, Totals::AddressType next, const Flags& what)
      : Actor("parser", kBlocksWaiting), pool(workers), totals(std::move(next)), flags(what) {}

  Task<> handle(Block m) {
    std::string_view left = m.lines;
    std::vector<std::string_view> pieces;
    const std::size_t piece_bytes = left.size() / static_cast<std::size_t>(pool.threads()) + 1;
    while (!left.empty()) {
      const std::size_t end = left.find('\n', std::min(piece_bytes, left.size() - 1));
      pieces.push_back(left.substr(0, end == std::string_view::npos ? end : end + 1));
      left.remove_prefix(pieces.back().size());
    }
    std::vector<Parsed> parsed(pieces.size());
    co_await pool.for_chunks(pieces.size(),
                             [&](std::size_t i) { parsed[i] = parse_lines(pieces[i]); });
    for (Parsed& part : parsed) {
      if (part.bad > 0 && !flags.skip_bad) {
        throw user_error("input",
                         "{}:{}: not `time_ms,route,status,bytes,latency_us`: \"{}\"; mend the "
                         "line or pass --skip_bad",
                         flags.file, lines + part.first_bad_line + 1, part.first_bad);
      }
      lines += part.lines;
      bad += part.bad;
      co_await totals.send(AddRows{std::move(part.rows)});
      ++messages;
      deepest_totals = std::max(deepest_totals, totals.depth());
    }
  }
  void handle(Flush) {}

  CpuPool& pool;
  Totals::AddressType totals;
  const Flags& flags;
  std::uint64_t lines = 0, bad = 0, messages = 0, deepest_totals = 0;
};

/// How far the reader is; of the loop, like everything that is not on the pool.
struct Progress {
  std::uint64_t file_bytes = 0, read_bytes = 0, blocks = 0, deepest_parser = 0;
  bool complete = false;
  Rows rows;
};

struct Reached {
  std::uint64_t bytes = 0, of = 0;
};
/// Says how far the reader is, twice a second at most. Its mailbox holds one message, and a newer
/// one takes the place of that: the reader tells every block and never waits for a terminal.
struct ProgressLines : Actor<ProgressLines, Reached> {
  static constexpr WhenFull kWhenFull = WhenFull::kCoalesce;
  static bool coalesce(Reached& waiting, Reached&& newer) {
    waiting = newer;
    return true;
  }
  ProgressLines() : Actor("progress", 1) {}
  Task<> handle(Reached m) {
    fmt::print(stderr, "read {} of {} MB\n", m.bytes >> 20, m.of >> 20);
    co_await sleep_for(std::chrono::milliseconds(500), scope().stop_token());
  }
};

/// Sends the file to the parser, block by block; ends early, between two blocks, when `stop` says
/// so.
Task<> read_file(FileIo* files, const Flags* flags, Address<Block, Flush> parser,
                 Address<Reached> shown, Progress* progress, StopToken stop) {
  const IoFile file = co_await files->open(flags->file, OpenMode::kRead);
  progress->file_bytes = co_await files->size(file);
  std::string rest;  // the line that the last block ended within
  while (!stop.stop_requested()) {
    std::string text = std::move(rest);
    const std::size_t carried = text.size();
    text.resize(carried + kBlockBytes);
    const std::size_t got = co_await files->read(
        file, progress->read_bytes, std::as_writable_bytes(std::span(text).subspan(carried)));
    text.resize(carried + got);
    const std::size_t end = got == 0 ? text.size() : text.rfind('\n') + 1;
    if (end == 0 && got > 0 && text.size() > kBlockBytes) {
      throw user_error("input", "{}: a line near byte {} is longer than {} bytes; is it a log?",
                       flags->file, progress->read_bytes, kBlockBytes);
    }
    rest = text.substr(end);
    text.resize(end);
    if (!text.empty()) {
      co_await parser.send(Block{std::move(text)});  // waits here while four blocks are waiting
      ++progress->blocks;
      co_await shown.send(Reached{progress->read_bytes, progress->file_bytes});
      progress->deepest_parser = std::max(progress->deepest_parser, parser.depth());
    }
    progress->read_bytes += got;
    if (got == 0) {
      progress->complete = true;
      co_return;
    }
  }
}

/// The way of a file through the stages: read, let everything arrive, take the sum, end the actors.
Task<> pipeline(FileIo* files, const Flags* flags, Parser* parser, Totals* totals,
                Address<Reached> shown, Progress* progress, StopToken stop_reading) {
  co_await read_file(files, flags, parser->address(), shown, progress, stop_reading);
  co_await parser->address().ask(Flush{});
  progress->rows = co_await totals->address().ask(Result{}, std::chrono::seconds(10));
  parser->close();
  totals->close();
}

Task<> stop_on_signal(int* signal, StopSource* reading, StopToken stop) {
  Signals signals(EventLoop::current(), {SIGINT, SIGTERM});
  *signal = co_await signals.wait(stop);
  reading->request_stop();
}

Task<> stop_at(TimePoint deadline, StopSource* reading, StopToken stop) {
  co_await sleep_until(deadline, stop);
  reading->request_stop();
}

/// Writes a log of `lines` lines.
Task<> generate(FileIo* files, CpuPool* pool, std::string path, std::uint64_t lines) {
  IoFile file = co_await files->open(path, OpenMode::kCreate);
  LogGenerator log(lines);
  std::string text;
  for (std::uint64_t offset = 0; log.lines_left() > 0; offset += text.size()) {
    // Long arithmetic belongs on a pool: on the loop's thread it would hold up everybody else.
    text = co_await pool->run([&] { return log.next(4 * kBlockBytes); });
    co_await files->write(file, offset, std::as_bytes(std::span(text)));
  }
  co_await files->close(std::move(file));
}

void report(const Progress& progress, const Parser& parser, double seconds) {
  const double mb = static_cast<double>(progress.read_bytes) / 1e6;
  fmt::print("{}", table_of(progress.rows));
  fmt::print("{} lines ({} bad), {:.1f} MB in {:.2f} s: {:.0f} MB/s, {:.0f} messages/s\n",
             parser.lines, parser.bad, mb, seconds, mb / seconds,
             static_cast<double>(progress.blocks + parser.messages) / seconds);
  fmt::print("deepest mailboxes: parser {} of {}, totals {} of {}; peak memory {} MB\n",
             progress.deepest_parser, kBlocksWaiting, parser.deepest_totals, kBlocksWaiting,
             machine::peak_rss_bytes() >> 20);
}

/// Waits for the pipeline, then ends those who only help; rethrows the pipeline's first failure.
Task<> wait_for(Scope* stages, Scope* helpers) {
  co_await stages->empty();
  helpers->request_stop();
  co_await helpers->empty();
  co_await stages->join();
}

int run(const Flags& flags) {
  EventLoop loop({.name = "pipeline"});
  CpuPool pool(loop, {.threads = flags.threads, .name = "parse"});
  FileIo files(loop);
  if (flags.generate > 0) {
    loop.run(&generate, &files, &pool, flags.file, flags.generate);
  } else if (!std::filesystem::is_regular_file(flags.file)) {
    throw user_error("input", "{} is no file; name a log, or write one with --generate N",
                     flags.file);
  }

  const TimePoint start = loop.now();
  Scope stages(loop, "stages");  // a failure of one stops the others
  Totals& totals = stages.start<Totals>();
  Parser& parser = stages.start<Parser>(pool, totals.address(), flags);
  StopSource reading(stages.stop_token());
  Progress progress;
  Scope helpers(loop, "helpers", stages.stop_token());
  ProgressLines lines;
  if (flags.progress == "lines" || (flags.progress == "auto" && isatty(STDERR_FILENO) != 0)) {
    lines.start(helpers);
  }  // else it holds the newest figure, and shows none
  stages.spawn("reader", &pipeline, &files, &flags, &parser, &totals, lines.address(), &progress,
               reading.token());

  if (flags.deadline_s > 0) {
    const std::chrono::duration<double> limit(flags.deadline_s);
    helpers.spawn("deadline", &stop_at, start + std::chrono::duration_cast<Duration>(limit),
                  &reading, helpers.stop_token());
  }
  int signal = 0;
  helpers.spawn("signals", &stop_on_signal, &signal, &reading, helpers.stop_token());
  loop.run(&wait_for, &stages, &helpers);

  report(progress, parser, std::chrono::duration<double>(loop.now() - start).count());
  if (progress.complete) {
    return 0;
  }
  std::fflush(stdout);
  fmt::print(stderr, "error: [{}] stopped after {} of {} bytes; the table covers only these{}\n",
             signal != 0 ? "signal" : "deadline", progress.read_bytes, progress.file_bytes,
             signal != 0 ? "" : "; raise --deadline");
  return signal != 0 ? 128 + signal : static_cast<int>(ExitCode::kFailure);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto flags = parse_flags(argc, argv);
    return flags ? run(*flags) : 0;
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return static_cast<int>(ExitCode::kFailure);
  }
}
