#include <algorithm>
#include <map>
#include <utility>

#include "models/foreign/readers.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Kind = PickleValue::Kind;

constexpr std::string_view kFiles[] = {"fp32", "exp_avg", "exp_avg_sq"};

struct UniversalTensor {
  std::shared_ptr<const TorchFile> file;
  const TorchTensor* tensor = nullptr;
};

/// Stages 0 to 2 save {"param": tensor of full shape}, stage 3 the flat tensor itself.
UniversalTensor open_tensor(const fs::path& path) {
  UniversalTensor out{.file = TorchFile::open(path)};
  const PickleValue& root = out.file->root();
  out.tensor = out.file->tensor(root.is(Kind::kDict) ? member_of(*out.file, root, "param") : root);
  if (out.tensor == nullptr) {
    throw out.file->error("it holds no tensor");
  }
  for (const char* key : {"sub_param_shape", "param_n_sub_params", "vocab_tensor"}) {
    if (root.find(key) != nullptr) {
      throw user_error("import",
                       "{} is of tensor parallelism (\"{}\"), which is not read; gather "
                       "it with DeepSpeed first",
                       path.string(), key);
    }
  }
  return out;
}

ImportedTensor read_tensor(const fs::path& folder, const ListedParam* listed) {
  const UniversalTensor master = open_tensor(folder / "fp32.pt");
  ImportedTensor out{.name = folder.filename().string(),
                     .shape = listed == nullptr ? master.tensor->shape : listed->shape,
                     .type = master.tensor->type,
                     .master = reader_of(master.file, *master.tensor)};
  if (out.numel() != master.tensor->numel) {
    throw master.file->error(fmt::format("it has {} elements, and its parameter {}",
                                         master.tensor->numel, shape_text(out.shape)));
  }
  for (std::size_t m = 0; m < out.moments.size(); ++m) {
    const fs::path path = folder / fmt::format("{}.pt", kFiles[m + 1]);
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
      continue;
    }
    const UniversalTensor moment = open_tensor(path);
    if (moment.tensor->numel != master.tensor->numel) {
      throw moment.file->error("it has another size than fp32.pt beside it");
    }
    out.moments[m] = reader_of(moment.file, *moment.tensor);
  }
  return out;
}

std::vector<fs::path> tensor_folders(const fs::path& zero) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(zero)) {
    if (fs::exists(entry.path() / "fp32.pt")) {
      out.push_back(entry.path());
    }
  }
  std::ranges::sort(out);
  return out;
}

}  // namespace

ImportedCheckpoint read_universal(const fs::path& folder) {
  CheckpointBuilder out("universal", folder);
  ImportedCheckpoint& checkpoint = out.checkpoint();
  // Our own writer makes a file for each range of stages, of one content.
  const fs::path whole = folder / "mp_rank_00_model_states.pt";
  const bool is_whole = fs::exists(whole);
  const TorchFiles models =
      open_all(is_whole ? std::vector{whole} : find_deepspeed_files(folder).models);
  out.read_common(*models[0]);
  std::map<std::string, ListedParam> listed;
  for (const auto& group : read_param_shapes(*models[0])) {
    for (const ListedParam& param : group) {
      listed.emplace(param.name, param);
    }
  }
  std::optional<std::int64_t> steps;
  std::size_t found = 0;
  for (const fs::path& path : tensor_folders(folder / "zero")) {
    const auto own = listed.find(path.filename().string());
    ImportedTensor tensor = read_tensor(path, own == listed.end() ? nullptr : &own->second);
    found += own == listed.end() ? 0 : 1;
    out.add(std::move(tensor), *models[0]);
    std::error_code ignored;
    if (!steps && fs::exists(path / "step.pt", ignored)) {
      const auto file = TorchFile::open(path / "step.pt");
      steps = count_of(*file, &file->root());
    }
  }
  if (found != listed.size()) {
    throw user_error(
        "import", "{} holds {} of the {} parameters that {} lists; convert the checkpoint again",
        (folder / "zero").string(), found, listed.size(), models[0]->path().filename().string());
  }
  const fs::path state = folder / "zero/optimizer_state.pt";
  std::error_code ignored;
  if (fs::exists(state, ignored)) {
    const auto file = TorchFile::open(state);
    checkpoint.zero_stage = static_cast<int>(integer_of(*file, file->root(), "zero_stage", 1));
    out.read_scaler(*file, file->root().find("loss_scaler"));
    if (const PickleValue* optimizer = file->root().find("optimizer_state_dict");
        optimizer != nullptr && !steps) {
      steps = steps_of(*file, *optimizer);
    }
  } else {
    checkpoint.notes.emplace_back("the loss scaler: zero/optimizer_state.pt is not there");
  }
  checkpoint.optimizer_steps = steps.value_or(checkpoint.optimizer_steps);
  out.finish_module(models, is_whole ? 2 : 3);
  return std::move(out).take();
}

}  // namespace tandem
