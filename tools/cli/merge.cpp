// `tandem merge ADAPTER --into DIR --output DIR`: adapters, as PEFT or training here saved them,
// and their base model as one model folder.
#include <array>
#include <filesystem>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "models/hub/hub_paths.hpp"
#include "models/merge_adapters.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"
#include "tools/cli/checkpoint_folders.hpp"
#include "tools/cli/commands.hpp"
#include "trainer/program/notes.hpp"
#include "trainer/program/program.hpp"

namespace tandem {

int run_merge(int argc, char** argv) {
  CLI::App app("Writes the model that a base model and adapters are together", "tandem merge");
  std::string adapter;
  std::string base;
  std::string output;
  app.add_option("ADAPTER", adapter,
                 "Folder with adapter_config.json and adapter_model.safetensors, or a run's folder")
      ->required();
  app.add_option("--into", base,
                 "The base model: a folder in Hugging Face format, or a hub id in the cache; "
                 "default: the one that adapter_config.json names");
  app.add_option("--output", output, "New folder")->required();
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  const std::filesystem::path folder = new_folder(output, "merge");
  const AdapterFolder adapters = AdapterFolder::open(resolve_adapter_folder(adapter));
  print_notes(adapters.notes());
  if (base.empty()) {
    base = adapters.base_model();
  }
  if (base.empty()) {
    throw user_error("merge", "{} does not name its base model; add --into DIR",
                     adapters.folder().string());
  }
  const MergedAdapters merged = merge_adapters(adapters, resolve_model_folder(base), folder);
  if (!merged.absent.empty()) {
    print_notes(std::array{merged.absent});
  }
  fmt::print(
      "{}: {} matrices of {} with their adapters of rank {}, scale {:.4g}{}\n", one_line(output),
      merged.adapted, one_line(base), adapters.lora().rank, adapters.lora().scale(),
      merged.replaced == 0 ? "" : fmt::format("; {} tensors replaced as a whole", merged.replaced));
  return 0;
}

}  // namespace tandem
