// Text to token ids: the texts of instruction records, as training learns them. bytes_per_second is
// of UTF-8 text.
//   load       tokenizer.json to a tokenizer
//   encode     each text to ids, all kept; each round with a tokenizer that has met no word yet
//   records    what a start does with them: ids and masks, the question tokenised once more
// --tokenizer=DIR, --dataset=F.json (default: the demo's), --threads=N (default: 1 and all).
// tools/bench/tokenizer_peers.py runs it beside Hugging Face's `tokenizers`.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "bench/program.hpp"
#include "engine/types/stopwatch.hpp"
#include "models/data/alpaca.hpp"
#include "models/data/alpaca_tokens.hpp"
#include "models/io/tokenizer/tokenizer.hpp"
#include "runtime/system/machine.hpp"
#include "trainer/program/program.hpp"

namespace tandem::bench {
namespace {

struct Texts {
  std::filesystem::path tokenizer;
  std::vector<AlpacaRecord> records;
  std::vector<std::string> texts;
  std::int64_t bytes = 0;
};

Texts read_texts(const std::filesystem::path& tokenizer, const std::filesystem::path& dataset) {
  Texts read{.tokenizer = tokenizer, .records = read_alpaca(dataset), .texts = {}};
  for (const AlpacaRecord& record : read.records) {
    read.texts.push_back(alpaca_text(record));
    read.bytes += std::ssize(read.texts.back());
  }
  return read;
}

/// Calls work(i) for each text on that many threads, 64 at a time.
template <class Work>
void on_threads(int threads, std::size_t count, const Work& work) {
  constexpr std::size_t kAtATime = 64;
  std::atomic<std::size_t> next = 0;
  const auto take = [&] {
    for (std::size_t begin = next.fetch_add(kAtATime); begin < count;
         begin = next.fetch_add(kAtATime)) {
      for (std::size_t i = begin; i < std::min(count, begin + kAtATime); ++i) {
        work(i);
      }
    }
  };
  std::vector<std::jthread> team;
  for (int t = 1; t < threads; ++t) {
    team.emplace_back(take);
  }
  take();
}

void run_load(benchmark::State& state, const Texts& texts) {
  for (auto _ : state) {
    const Tokenizer tokenizer = Tokenizer::load(texts.tokenizer);
    benchmark::DoNotOptimize(tokenizer.vocab_size());
  }
}

void run_encode(benchmark::State& state, const Texts& texts, int threads) {
  std::size_t tokens = 0;
  for (auto _ : state) {
    const Tokenizer tokenizer = Tokenizer::load(texts.tokenizer);
    std::vector<std::vector<std::int32_t>> ids(texts.texts.size());
    const Stopwatch watch;
    on_threads(threads, ids.size(),
               [&](std::size_t i) { ids[i] = tokenizer.encode(texts.texts[i]); });
    state.SetIterationTime(watch.elapsed_s());
    tokens = 0;
    for (const auto& of_text : ids) {
      tokens += of_text.size();
    }
  }
  state.SetBytesProcessed(state.iterations() * texts.bytes);
  state.counters["tokens"] = static_cast<double>(tokens);
}

void run_records(benchmark::State& state, const Texts& texts) {
  for (auto _ : state) {
    const Tokenizer tokenizer = Tokenizer::load(texts.tokenizer);
    const Stopwatch watch;
    const auto records =
        tokenise_alpaca(texts.records, tokenizer, {.end_token = tokenizer.eos_id()});
    state.SetIterationTime(watch.elapsed_s());
    benchmark::DoNotOptimize(records->size());
  }
  state.SetBytesProcessed(state.iterations() * texts.bytes);
}

void register_all(const Texts& texts, const std::vector<int>& threads) {
  benchmark::RegisterBenchmark("load", [&texts](benchmark::State& state) {
    run_load(state, texts);
  })->Unit(benchmark::kMillisecond);
  for (const int count : threads) {
    benchmark::RegisterBenchmark(
        fmt::format("encode/threads:{}", count).c_str(),
        [&texts, count](benchmark::State& state) { run_encode(state, texts, count); })
        ->Unit(benchmark::kMillisecond)
        ->UseManualTime();
  }
  benchmark::RegisterBenchmark("records",
                               [&texts](benchmark::State& state) { run_records(state, texts); })
      ->Unit(benchmark::kMillisecond)
      ->UseManualTime();
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem;
  return guarded_main([&] {
    const std::filesystem::path demo = TANDEM_DEMO_DIR;
    bench::Suite suite(argc, argv, "text to token ids, in MB/s on one thread and on all");
    const std::string folder = suite.text("--tokenizer", demo, "folder of tokenizer.json");
    const std::string dataset =
        suite.text("--dataset", demo / "instructions.json", "instruction records");
    const auto threads =
        static_cast<int>(suite.number("--threads", 0, {.most = 1024}, "0: one, and all"));
    suite.begin();
    const bench::Texts texts = bench::read_texts(folder, dataset);
    std::vector<int> counts = {std::max(1, threads)};
    if (threads == 0 && machine::usable_cpus() > 1) {
      counts.push_back(machine::usable_cpus());
    }
    bench::register_all(texts, counts);
    return suite.run();
  });
}
