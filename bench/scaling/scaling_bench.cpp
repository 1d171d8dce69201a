// bench/scaling/scaling_bench.cpp — the schedule on 8 to 4,096 ranks, in virtual time: step time
// and efficiency at weak scaling.
//
//   bench_scaling [--machine dgx-h100] [--model 7b 70b | CONFIG.json] [--ranks 8 ... 4096] [--full]
//
// One rank, with the step that trains (scaled_rank.hpp), stands for all (cluster.hpp). --full
// simulates every rank beside it, and exits with 1 where the two differ by more than --within
// per cent. The same seed gives the same figures. docs/scaling.md says what is modelled.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/scaling/scaled_rank.hpp"
#include "models/causal_lm.hpp"
#include "runtime/util/error.hpp"
#include "trainer/program/program.hpp"

namespace tandem::bench {
namespace {

constexpr int kWarmUpSteps = 2;
constexpr int kSteps = 3;

struct NamedConfig {
  const char* name;
  const char* json;  // as the models' own config.json says
};
constexpr NamedConfig kConfigs[] = {
    {"7b",  // Llama 2 7B
     R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
         "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
         "vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
         "hidden_act": "silu", "tie_word_embeddings": false})"},
    {"70b",  // Llama 2 70B
     R"({"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
         "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
         "vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
         "hidden_act": "silu", "tie_word_embeddings": false})"},
};

struct Flags {
  std::string machine = "dgx-h100";
  std::vector<std::string> models = {"7b", "70b"};
  std::vector<std::uint32_t> ranks = {8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
  std::vector<int> stages = {3};
  std::int64_t rows = 1;
  std::int64_t length = 4096;
  double share = 0.5;
  std::string reduction = "exact";
  std::uint64_t seed = 1;
  bool full = false;
  double within = 2;  // per cent
};

Model model_named(const std::string& name) {
  for (const NamedConfig& config : kConfigs) {
    if (name == config.name) {
      return make_causal_lm(parse_hf_config(config.json, name));
    }
  }
  return make_causal_lm(read_hf_config(name));
}

Machine machine_named(const std::string& name) {
  const auto* const found = std::ranges::find(kMachines, name, &Machine::name);
  if (found == kMachines.end()) {
    std::string names;
    for (const Machine& machine : kMachines) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", machine.name);
    }
    throw user_error("scaling", "--machine is {}; it is one of {}", name, names);
  }
  return *found;
}

/// The mean of the steps after the first, of the slowest rank.
StepTimes simulate(const Machine& machine, const RankWork& work, std::uint32_t ranks, bool folded,
                   const Flags& flags) {
  SimWorld world({.seed = flags.seed,
                  .ranks = folded ? 1 : ranks,
                  .limit = std::chrono::hours(24),
                  .max_operations = UINT64_MAX});
  Cluster cluster(world, {.machine = machine,
                          .world = ranks,
                          .folded = folded,
                          .ring_reductions = flags.reduction == "ring"});
  std::vector<std::unique_ptr<ScaledRank>> all;
  for (std::uint32_t rank = 0; rank < world.ranks(); ++rank) {
    all.push_back(std::make_unique<ScaledRank>(world, cluster, machine, work, rank));
    all.back()->start(kWarmUpSteps + kSteps);
  }
  const SimWorld::End end = world.run(
      [&] { return std::ranges::all_of(all, [](const auto& rank) { return rank->ended(); }); });
  if (end != SimWorld::End::kDone) {
    throw failure(ExitCode::kFailure, "scaling",
                  "the simulated ranks are stuck at {} s of {} ranks",
                  std::chrono::duration<double>(world.elapsed()).count(), ranks);
  }
  StepTimes slowest;
  for (const auto& rank : all) {
    StepTimes mean;
    for (int i = kWarmUpSteps; i < kWarmUpSteps + kSteps; ++i) {
      const StepTimes& step = rank->steps()[static_cast<std::size_t>(i)];
      mean.step += step.step / kSteps;
      mean.waits_for_gathers += step.waits_for_gathers / kSteps;
      mean.waits_for_reductions += step.waits_for_reductions / kSteps;
      mean.waits_for_updates += step.waits_for_updates / kSteps;
    }
    slowest = mean.step > slowest.step ? mean : slowest;
  }
  return slowest;
}

/// The time of a step's visits if nothing else takes time.
double compute_alone_s(const Machine& machine, const RankWork& work) {
  double flops = 0;
  for (std::size_t s = 0; s < work.model->segments.size(); ++s) {
    for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
      flops += work.flops_of(s, phase);
    }
  }
  return flops / (machine.compute_flops_per_s * work.share_of_peak);
}

void print_row(const std::string& name, const Machine& machine, const RankWork& work,
               std::uint32_t ranks, const Flags& flags) {
  const StepTimes times = simulate(machine, work, ranks, /*folded=*/true, flags);
  const double alone_s = compute_alone_s(machine, work);
  fmt::print("| {} | {} | {} | {:.1f} | {:.1f} | {:.1f} % | {:.1f} | {:.1f} | {:.1f} |\n", name,
             work.stage, ranks, times.step * 1e3, alone_s * 1e3, alone_s / times.step * 100,
             times.waits_for_gathers * 1e3, times.waits_for_reductions * 1e3,
             times.waits_for_updates * 1e3);
  std::fflush(stdout);
}

/// Whether one rank that stands for all gives what all give.
bool compare(const std::string& name, const Machine& machine, const RankWork& work,
             std::uint32_t ranks, const Flags& flags) {
  const double one_s = simulate(machine, work, ranks, /*folded=*/true, flags).step;
  const double all_s = simulate(machine, work, ranks, /*folded=*/false, flags).step;
  const double per_cent = (one_s / all_s - 1) * 100;
  fmt::print("| {} | {} | {} | {:.1f} | {:.1f} | {:+.2f} % |\n", name, work.stage, ranks,
             all_s * 1e3, one_s * 1e3, per_cent);
  std::fflush(stdout);
  return std::abs(per_cent) <= flags.within;
}

void check(const Flags& flags) {
  for (const std::uint32_t ranks : flags.ranks) {
    if (ranks < Machine::kRanks || ranks > 4096 || ranks % Machine::kRanks != 0) {
      throw user_error("scaling",
                       "--ranks has {}; hosts have 8 ranks, so give multiples of 8, up to 4096",
                       ranks);
    }
  }
  for (const int stage : flags.stages) {
    if (stage < 1 || stage > 3) {
      throw user_error("scaling", "--stage has {}; what is simulated is 1, 2 and 3", stage);
    }
  }
  require_one_of("--reduction", flags.reduction, {"exact", "ring"});
  require_above_zero("--rows", static_cast<double>(flags.rows), 4096);
  require_above_zero("--length", static_cast<double>(flags.length), 1 << 20);
  require_above_zero("--share", flags.share, 1);
}

int run(int argc, char** argv) {
  CLI::App app("The training schedule on 8 to 4,096 ranks, in virtual time", "bench_scaling");
  Flags flags;
  bool simulate = true;
  app.add_flag("--simulate", simulate, "what this program does, for `tandem bench scaling`");
  app.add_option("--machine", flags.machine, "of which the hosts are")->capture_default_str();
  app.add_option("--model", flags.models, "7b, 70b, or a folder with a config.json");
  app.add_option("--ranks", flags.ranks, "multiples of 8, up to 4096");
  app.add_option("--stage", flags.stages, "ZeRO stages, of 1 to 3");
  app.add_option("--rows", flags.rows, "of a rank's micro-batch")->capture_default_str();
  app.add_option("--length", flags.length, "tokens of a row")->capture_default_str();
  app.add_option("--share", flags.share, "of the peak FLOP/s that a visit reaches")
      ->capture_default_str();
  app.add_option("--reduction", flags.reduction, "exact: in rank order; ring: as NCCL adds")
      ->capture_default_str();
  app.add_option("--seed", flags.seed, "of what the simulator draws")->capture_default_str();
  app.add_flag("--full", flags.full, "every rank beside the one that stands for all");
  app.add_option("--within", flags.within, "per cent that the two may differ by")
      ->capture_default_str();
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  check(flags);
  const Machine machine = machine_named(flags.machine);
  fmt::print("{}\n", flags.full
                         ? "| model | stage | ranks | all ranks, ms | one for all, ms | apart |\n"
                           "|---|---|---|---|---|---|"
                         : "| model | stage | ranks | step, ms | compute alone, ms | efficiency | "
                           "waits for gathers, ms | for reductions, ms | for updates, ms |\n"
                           "|---|---|---|---|---|---|---|---|---|");
  bool agree = true;
  for (const std::string& name : flags.models) {
    const Model model = model_named(name);
    for (const int stage : flags.stages) {
      const RankWork work{.model = &model,
                          .stage = stage,
                          .rows = flags.rows,
                          .length = flags.length,
                          .share_of_peak = flags.share};
      for (const std::uint32_t ranks : flags.ranks) {
        if (flags.full) {
          agree = compare(name, machine, work, ranks, flags) && agree;
        } else {
          print_row(name, machine, work, ranks, flags);
        }
      }
    }
  }
  return agree ? 0 : 1;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  return tandem::guarded_main([&] { return tandem::bench::run(argc, argv); });
}
