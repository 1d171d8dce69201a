// bench/checkpoint/checkpoint_bench.cpp — what a save that runs beside training costs its steps.
//
//   bench_checkpoint [--folder=DIR] [Google Benchmark's flags]
//
// Shapes: a small and a large model on steps of 2048 and 1024 tokens, and the large one on steps of
// 256, some ten of which pass while 3.4 GB are written: what a save costs at the worst.
//
// save/MODEL: rounds of some steps without a save, then a save and the steps until it has ended.
// `ratio` is the median over the rounds of a step's time while a save runs (its begin included)
// over one without, each a mean of its round; `exposed_ms` is exposed_checkpoint_s of a save's
// steps in all, `save_s` and `MB_per_s` are the save's own. `equal` is 1 where its bytes are those
// of a save that training waited for. `write_ratio` is the same as `ratio` with a thread in the
// save's place that writes as many bytes past the page cache, and neither reads nor hashes them:
// what the disk alone takes from the steps. The files lie in DIR (default: the temporary folder),
// which should be on the disk that matters.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "actors/memory/arena.hpp"
#include "bench/program.hpp"
#include "bench/step/shapes.hpp"
#include "bench/torch_context.hpp"
#include "engine/config/config.hpp"
#include "engine/engine.hpp"
#include "engine/types/stopwatch.hpp"
#include "trainer/program/reexec.hpp"

namespace tandem::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kRounds = 5;

std::string folder;

struct Shape {
  const char* name;
  HfConfig config;
  std::int64_t rows;
  std::int64_t length;
  int plain_steps;  // of a round
};

HfConfig qwen3_300m() {
  HfConfig config = qwen3_20m();
  config.vocab_size = 32'000;
  config.hidden_size = 1024;
  config.intermediate_size = 3072;
  config.num_hidden_layers = 20;
  config.num_attention_heads = 16;
  config.num_key_value_heads = 8;
  return config;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

bool same_files(const fs::path& one, const fs::path& other) {
  for (const fs::directory_entry& entry : fs::directory_iterator(one)) {
    std::ifstream a(entry.path(), std::ios::binary);
    std::ifstream b(other / entry.path().filename(), std::ios::binary);
    if (!b || !std::equal(std::istreambuf_iterator<char>(a), std::istreambuf_iterator<char>(),
                          std::istreambuf_iterator<char>(b), std::istreambuf_iterator<char>())) {
      return false;
    }
  }
  return true;
}

/// Nothing where the file system cannot.
void write_past_cache(const std::string& path, std::uint64_t bytes) {
  constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
  const HostBuffer piece(kPieceBytes);
  const int file = ::open(path.c_str(), O_CREAT | O_WRONLY | O_DIRECT | O_CLOEXEC, 0600);
  std::uint64_t at = 0;
  while (at < bytes && ::pwrite(file, piece.data(), kPieceBytes, static_cast<off_t>(at)) > 0) {
    at += kPieceBytes;
  }
  ::close(file);
  ::unlink(path.c_str());
}

class Saving {
 public:
  explicit Saving(const Shape& shape)
      : engine_(
            {.model = random_model(shape.config, 0),
             .config = parse_config(
                 R"({"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0,
                         "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
                         "zero_optimization": {"stage": 3,
                                               "offload_optimizer": {"device": "cpu"}}})",
                 "bench_checkpoint", 1),
             .options = {.plans_run = false, .checkpoint_staging_bytes = std::size_t{256} << 20}}),
        batch_(random_tokens(shape.rows, shape.length, shape.config.vocab_size)),
        plain_steps_(shape.plain_steps) {}

  StepResult step() { return engine_.train_step(std::span(&batch_, 1)); }
  Engine& engine() { return engine_; }

  double plain_step_s() {
    const Stopwatch watch;
    for (int i = 0; i < plain_steps_; ++i) {
      (void)step();
    }
    return watch.elapsed_s() / plain_steps_;
  }

  /// The time of a step while `bytes` are written.
  double step_beside_writes_s(std::uint64_t bytes) {
    std::atomic<bool> ended = false;
    const Stopwatch watch;
    std::jthread writer([&] {
      write_past_cache(folder + "/control", bytes);
      ended = true;
    });
    int steps = 0;
    for (; steps == 0 || !ended; ++steps) {
      (void)step();
    }
    return watch.elapsed_s() / steps;
  }

  struct Save {
    double step_s = 0;
    double exposed_s = 0;
    CheckpointOutcome outcome;
  };
  Save save_beside_steps() {
    Save save;
    const Stopwatch watch;
    engine_.begin_checkpoint({.folder = folder, .tag = "beside"});
    int steps = 0;
    for (bool ended = false; !ended; ++steps) {
      const StepResult result = step();
      save.exposed_s += result.exposure.checkpoint_s;
      if (result.checkpoint) {
        save.outcome = *result.checkpoint;
        ended = true;
      }
    }
    save.step_s = watch.elapsed_s() / steps;
    return save;
  }

 private:
  Engine engine_;
  Batch batch_;
  int plain_steps_;
};

void run(benchmark::State& state, const Shape& shape) {
  Saving run(shape);
  for (int warm_up = 0; warm_up < 3; ++warm_up) {
    (void)run.step();
  }
  std::vector<double> ratios;
  std::vector<double> write_ratios;
  std::vector<double> exposed;
  std::vector<double> seconds;
  double bytes = 0;
  for (auto _ : state) {
    for (int round = 0; round < kRounds; ++round) {
      const double plain_s = run.plain_step_s();
      const Saving::Save save = run.save_beside_steps();
      if (!save.outcome.saved()) {
        state.SkipWithError(save.outcome.error.c_str());
        return;
      }
      ratios.push_back(save.step_s / plain_s);
      exposed.push_back(1e3 * save.exposed_s);
      seconds.push_back(save.outcome.seconds);
      bytes = static_cast<double>(save.outcome.bytes);
      write_ratios.push_back(run.step_beside_writes_s(save.outcome.bytes) / plain_s);
    }
  }
  (void)run.engine().save_checkpoint(folder, "waited for");
  run.engine().begin_checkpoint({.folder = folder, .tag = "beside"});
  (void)run.step();
  (void)run.engine().finish_checkpoint();
  state.counters["equal"] =
      same_files(fs::path(folder) / "waited for", fs::path(folder) / "beside") ? 1 : 0;
  state.counters["ratio"] = median(ratios);
  state.counters["write_ratio"] = median(write_ratios);
  state.counters["exposed_ms"] = median(exposed);
  state.counters["save_s"] = median(seconds);
  state.counters["MB_per_s"] = bytes / 1e6 / median(seconds);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem::bench;
  tandem::reexec_with_tuned_env();
  Suite suite(argc, argv, "what a save that runs beside training costs its steps");
  const std::filesystem::path parent = suite.text(
      "--folder", std::filesystem::temp_directory_path(), "where the checkpoints are written");
  suite.begin();
  add_torch_context();
  folder = parent / fmt::format("bench_checkpoint-{}", ::getpid());
  for (const Shape& shape :
       {Shape{"qwen3_20m", qwen3_20m(), 8, 256, 4}, Shape{"qwen3_300m", qwen3_300m(), 4, 256, 2},
        Shape{"qwen3_300m_short_steps", qwen3_300m(), 2, 128, 4}}) {
    benchmark::RegisterBenchmark(fmt::format("save/{}", shape.name).c_str(),
                                 [shape](benchmark::State& state) { run(state, shape); })
        ->Unit(benchmark::kMillisecond)
        ->Iterations(1)
        ->UseRealTime();
  }
  return suite.run();
}
