// `tandem checkpoint show DIR`: what a checkpoint holds and how it was saved. `tandem checkpoint
// verify DIR`: whether every byte of it is the one that was saved, and whose slices are not here.
// `tandem checkpoint gather SRC... --output DIR`: one checkpoint of several hosts' slices.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include "actors/storage/file.hpp"
#include "engine/checkpoint/checkpoint_search.hpp"
#include "engine/checkpoint/gather_slices.hpp"
#include "engine/checkpoint/run_state.hpp"
#include "engine/memory/memory_plan.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/json_writer.hpp"
#include "runtime/util/one_line.hpp"
#include "tools/cli/checkpoint_folders.hpp"
#include "tools/cli/commands.hpp"
#include "trainer/program/program.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostText = std::uint64_t{1} << 30;

struct Array {
  std::size_t tensors = 0;
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;
};

struct Shown {
  HeldCheckpoint held;
  RunState state;
  std::string saved;                    // UTC
  std::map<std::string, Array> arrays;  // here: master, exp_avg, ...
  std::int64_t parameters = 0;          // in the whole checkpoint
};

/// "disk 1 of 2, of host b; the slices of host a are missing here"
std::string slices_text(const HeldCheckpoint& held) {
  const std::string missing = missing_in({held});
  return fmt::format("disk {} of {}, of host {}; {}", held.disk + 1, held.hosts.size(),
                     held.hosts[held.disk],
                     missing.empty() ? "every element is here" : missing + " here");
}

/// Empty: not known.
std::string seed_text(const RunState& state) {
  return state.seed ? std::to_string(*state.seed) : "";
}

/// Files are called master-00001-of-00002.safetensors.
std::map<std::string, Array> arrays_of(const std::vector<ManifestFile>& files) {
  std::map<std::string, Array> arrays;
  for (const ManifestFile& file : files) {
    for (const ManifestTensor& tensor : file.tensors) {
      Array& array = arrays[std::string(array_of_file(file.name))];
      ++array.tensors;
      array.elements += static_cast<std::int64_t>(tensor.size_bytes / bytes_of(tensor.type));
      array.bytes += tensor.size_bytes;
    }
  }
  return arrays;
}

Shown read_checkpoint(const std::string& folder) {
  const std::string last = manifest_path(folder);
  const std::string state = fs::path(folder) / kStateFile;
  Shown shown{.held = HeldCheckpoint::parse(folder, read_file(last, "checkpoint", kMostText)),
              .state = RunState::parse(read_file(state, "checkpoint", kMostText), state)};
  const auto written = std::chrono::file_clock::to_sys(fs::last_write_time(last));
  shown.saved =
      fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", std::chrono::floor<std::chrono::seconds>(written));
  shown.arrays = arrays_of(shown.held.files);
  for (const PlannedFile& file : shown.held.whole) {
    for (const TensorPlan& tensor : file.tensors) {
      shown.parameters += array_of_file(file.name) == "master" ? tensor.numel() : 0;
    }
  }
  return shown;
}

void print_json(const Shown& shown) {
  const RunState& state = shown.state;
  JsonWriter json(2);
  json.begin_object()
      .field("path", shown.held.folder)
      .field("step", state.global_steps)
      .field("saved", shown.saved)
      .field("version", state.version)
      .field("world_size", state.world_size)
      .field("zero_stage", state.zero_stage)
      .field("precision", state.precision)
      .field("optimizer_state", state.state_layout)
      .field("optimizer", state.optimizer)
      .field("applied_steps", state.applied_steps)
      .field("skipped_steps", state.skipped_steps)
      .field("next_micro_batch", state.micro_batches)
      .field("epoch", state.epoch)
      .field("seed", seed_text(state))
      .field("data_fingerprint", state.data)
      .field("micro_batch_size", state.micro_batch_size)
      .field("step_micro_batches", state.step_micro_batches);
  json.key("loss_scale");
  if (state.scaler) {
    json.value(state.scaler->scale);
  } else {
    json.value(nullptr);
  }
  json.field("parameters", shown.parameters);
  json.key("arrays").begin_array();
  for (const auto& [name, array] : shown.arrays) {
    json.begin_object()
        .field("name", name)
        .field("tensors", array.tensors)
        .field("elements", array.elements)
        .field("bytes", array.bytes)
        .end_object();
  }
  json.end_array();
  if (shown.held.in_slices) {
    json.key("slices").begin_object();
    json.field("disk", shown.held.disk).field("hosts", shown.held.hosts);
    json.field("missing", missing_in({shown.held})).end_object();
  }
  json.key("files").begin_array();
  for (const ManifestFile& file : shown.held.files) {
    json.begin_object()
        .field("name", file.name)
        .field("bytes", file.size_bytes)
        .field("tensors", file.tensors.size())
        .end_object();
  }
  fmt::print("{}\n", json.end_array().end_object().text());
}

void print_text(const Shown& shown) {
  const RunState& state = shown.state;
  const auto line = [](std::string_view name, const std::string& text) {
    fmt::print("{:<11} {}\n", one_line(name), one_line(text));
  };
  const auto or_unknown = [](const std::string& text) { return text.empty() ? "not known" : text; };
  line("checkpoint", shown.held.folder);
  if (shown.held.in_slices) {
    line("slices", slices_text(shown.held));
  }
  line("step", fmt::format("{}, of them applied {}, skipped {}", state.global_steps,
                           state.applied_steps, state.skipped_steps));
  line("saved", fmt::format("{} by tandem {}", shown.saved, state.version));
  line("run", fmt::format("{} rank{}, ZeRO stage {}, {}, optimizer state {}", state.world_size,
                          state.world_size == 1 ? "" : "s", state.zero_stage,
                          or_unknown(state.precision), or_unknown(state.state_layout)));
  line("optimizer", or_unknown(state.optimizer));
  line("data",
       fmt::format("next micro-batch {}, epoch {}, seed {}, fingerprint {}", state.micro_batches,
                   state.epoch, or_unknown(seed_text(state)), or_unknown(state.data)));
  line("loss scale", state.scaler ? fmt::format("{}", state.scaler->scale) : "none");
  line("parameters", fmt::format("{}", shown.parameters));
  for (const auto& [name, array] : shown.arrays) {
    line("array", fmt::format("{}: {} tensors, {}", name, array.tensors,
                              size_text(static_cast<std::int64_t>(array.bytes))));
  }
  for (const ManifestFile& file : shown.held.files) {
    line("file",
         fmt::format("{}: {}", file.name, size_text(static_cast<std::int64_t>(file.size_bytes))));
  }
}

int show(const std::string& folder, bool json) {
  const NamedCheckpoints named = checkpoints_in(folder);
  const std::vector<FoundFolder> found = newest_first(named);
  if (found.empty()) {
    throw user_error("checkpoint", "{} holds no whole checkpoint ({}); use another folder", folder,
                     named.broken.front());
  }
  const Shown shown = read_checkpoint(found.front().path);
  if (shown.parameters == 0) {
    throw user_error("checkpoint", "{} holds no master weights; use another one",
                     shown.held.folder);
  }
  json ? print_json(shown) : print_text(shown);
  return 0;
}

int verify(const std::string& folder) {
  const NamedCheckpoints named = checkpoints_in(folder);
  std::vector<std::string> faults = named.broken;
  const auto verify_one = [&](const std::string& path, bool in_slices) {
    const Verified verified = verify_checkpoint(path);
    faults.insert(faults.end(), verified.faults.begin(), verified.faults.end());
    if (verified.faults.empty()) {
      fmt::print("{}{} files, {} tensors, {:.3g} GB: {}\n",
                 path == folder ? "" : one_line(path) + ": ", verified.files, verified.tensors,
                 static_cast<double>(verified.bytes) / 1e9,
                 in_slices ? "as saved; " + slices_text(read_checkpoint(path).held) : "whole");
    }
  };
  for (const std::string& path : named.whole) {
    verify_one(path, /*in_slices=*/false);
  }
  for (const FoundSlices& slices : named.slices) {
    verify_one(slices.path, /*in_slices=*/true);
  }
  std::fflush(stdout);
  for (const std::string& fault : faults) {
    fmt::print(stderr, "error: [checkpoint] {}\n", one_line(fault));
  }
  return static_cast<int>(faults.empty() ? ExitCode::kDone : ExitCode::kUserInput);
}

int gather(const std::vector<std::string>& sources, const std::string& output) {
  for (const std::string& source : sources) {
    (void)checkpoints_in(source);
  }
  const Gathered gathered = gather_slices(sources, new_folder(output, "checkpoint").string());
  for (const std::string& note : gathered.notes) {
    fmt::print(stderr, "{}\n", one_line(note));
  }
  fmt::print("{}: step {}, of {} folders\n", one_line(output), gathered.step, gathered.folders);
  return 0;
}

}  // namespace

int run_checkpoint(int argc, char** argv) {
  CLI::App app("What a checkpoint holds, and whether it is whole", "tandem checkpoint");
  app.require_subcommand(1);
  std::string folder;
  bool json = false;
  CLI::App* shows = app.add_subcommand("show", "What it holds, and how it was saved");
  CLI::App* verifies = app.add_subcommand(
      "verify", "Hashes every byte; exit 2 and a line for each file or tensor that is damaged");
  shows->add_flag("--json", json, "Print one JSON object");
  shows->add_option("DIR", folder, "A checkpoint; of a run or a folder of them, the newest")
      ->required();
  verifies->add_option("DIR", folder, "A checkpoint; of a run or a folder of them, every one")
      ->required();
  std::vector<std::string> sources;
  std::string output;
  CLI::App* gathers = app.add_subcommand(
      "gather", "One checkpoint of the slices that hosts with disks of their own have saved");
  gathers->add_option("SRC", sources, "Folders of slices, copied from the hosts, or of runs")
      ->required();
  gathers->add_option("--output", output, "The checkpoint; a new folder, or an empty one")
      ->required();
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  if (gathers->parsed()) {
    return gather(sources, output);
  }
  return shows->parsed() ? show(folder, json) : verify(folder);
}

}  // namespace tandem
