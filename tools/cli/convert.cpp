// `tandem convert SRC DST --to tandem|hf|universal`: a checkpoint of DeepSpeed, torch or Tandem in
// another form. DST appears when all of it is written.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "actors/storage/file.hpp"
#include "actors/storage/folder.hpp"
#include "models/convert/tandem_checkpoint.hpp"
#include "models/save_weights.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"
#include "tools/cli/checkpoint_folders.hpp"
#include "tools/cli/commands.hpp"
#include "trainer/program/program.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhere = "convert";
constexpr std::uint64_t kMostTextBytes = std::uint64_t{1} << 26;
// The files that loaders read from a folder beside its weights, where they are there.
constexpr const char* kDescriptions[] = {"config.json", "generation_config.json", "tokenizer.json",
                                         "tokenizer_config.json"};

ImportedCheckpoint open_source(const std::string& source, const std::string& to) {
  if (is_foreign_checkpoint(source)) {
    return open_foreign_checkpoint(source);
  }
  const NamedCheckpoints named = checkpoints_in(source);
  const std::vector<FoundFolder> found = newest_first(named);
  if (!found.empty() && found.front().in_slices) {
    throw user_error(kWhere,
                     "{} holds one host's slices of a checkpoint; make one of all hosts' first "
                     "(./tandem checkpoint gather){}",
                     found.front().path,
                     named.whole.empty() ? "" : ", or name the older one, " + named.whole.front());
  }
  if (named.whole.empty()) {
    throw user_error(kWhere, "{} holds no whole checkpoint ({}); give another one", source,
                     named.broken.front());
  }
  const std::string& folder = named.whole.front();
  if (to == "tandem") {
    throw user_error(kWhere, "{} is a checkpoint of Tandem already; copy the folder", folder);
  }
  const Verified verified = verify_checkpoint(folder);
  if (!verified.faults.empty()) {
    throw user_error(kWhere, "{}; use another checkpoint", verified.faults.front());
  }
  return open_tandem_checkpoint(folder);
}

/// Those of the folder that was opened, else of the one that was named.
std::vector<PlannedText> descriptions_of(const std::string& source, const std::string& opened) {
  std::vector<PlannedText> texts;
  for (const char* name : kDescriptions) {
    for (const fs::path& folder : {fs::path(opened), fs::path(source)}) {
      std::error_code ignored;
      if (fs::is_regular_file(folder / name, ignored)) {
        texts.push_back({name, read_file(folder / name, kWhere, kMostTextBytes)});
        break;
      }
    }
  }
  return texts;
}

void write_in_other_form(const ImportedCheckpoint& checkpoint, const fs::path& target,
                         const std::vector<PlannedText>& texts, std::optional<TensorType> type,
                         const std::string& to) {
  AtomicFolder made(target, std::string(kWhere));
  if (to == "universal") {
    write_universal(checkpoint, made.temporary() / fmt::format("global_step{}_universal",
                                                               checkpoint.global_steps));
  } else {
    write_hugging_face(checkpoint, made.temporary(), type);
    for (const PlannedText& text : texts) {
      write_file(made.temporary() / text.name, kWhere, text.text);
    }
  }
  made.commit();
}

}  // namespace

int run_convert(int argc, char** argv) {
  CLI::App app("Writes a checkpoint in another form", "tandem convert");
  std::string source;
  std::string target;
  std::string to;
  std::string dtype;
  app.add_option("SRC", source,
                 "What DeepSpeed or torch saved, or a checkpoint of Tandem; of a run the newest")
      ->required();
  app.add_option("DST", target, "New folder")->required();
  app.add_option("--to", to,
                 "tandem: for --resume; hf: model.safetensors; universal: for DeepSpeed")
      ->required();
  app.add_option("--dtype", dtype,
                 "Of the weights with --to hf: bf16, fp16 or fp32; default: kept");
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  require_one_of("--to", to, {"tandem", "hf", "universal"});
  if (!dtype.empty()) {
    require_one_of("--dtype", dtype, {"bf16", "fp16", "fp32"});
    if (to != "hf") {
      throw user_error("flags", "--dtype goes with --to hf, and --to is {}; leave it out", to);
    }
  }
  const fs::path folder = new_folder(target, kWhere);
  ImportedCheckpoint checkpoint = open_source(source, to);
  std::vector<PlannedText> texts = descriptions_of(source, checkpoint.path);
  std::vector<std::string> notes = checkpoint.notes;
  if (to == "tandem") {
    make_writable_folder(folder.parent_path(), kWhere);
    const auto more = write_tandem(checkpoint, folder, std::move(texts));
    notes.insert(notes.end(), more.begin(), more.end());
  } else {
    write_in_other_form(checkpoint, folder, texts, type_by_name(dtype), to);
  }
  for (const std::string& note : notes) {
    fmt::print("left out: {}\n", one_line(note));
  }
  fmt::print("{}: {} tensors of step {}, from {} to {}\n", one_line(target),
             checkpoint.tensors.size(), checkpoint.global_steps, checkpoint.kind, to);
  return 0;
}

}  // namespace tandem
