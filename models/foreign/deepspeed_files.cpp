#include <charconv>
#include <map>
#include <optional>
#include <string_view>

#include "models/foreign/readers.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhere = "import";
constexpr std::string_view kModel = "_model_states.pt";
constexpr std::string_view kOptimizer = "_optim_states.pt";

bool skip(std::string_view& text, std::string_view prefix) {
  const bool there = text.starts_with(prefix);
  text.remove_prefix(there ? prefix.size() : 0);
  return there;
}

std::optional<int> skip_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

/// The parts of a name: [bf16_]zero_pp_rank_R_mp_rank_00_..., or mp_rank_00_... without ranks.
struct FileName {
  std::string_view prefix;
  bool partitioned = false;
  int rank = 0;
  bool optimizer = false;
};

std::optional<FileName> parse(std::string_view text) {
  FileName name;
  for (const std::string_view prefix : {"bf16_", "fp16_"}) {
    if (skip(text, prefix)) {
      name.prefix = prefix;
      break;
    }
  }
  if (skip(text, "zero_pp_rank_")) {
    const auto rank = skip_number(text);
    if (!rank || !skip(text, "_")) {
      return std::nullopt;
    }
    name.partitioned = true;
    name.rank = *rank;
  }
  if (!skip(text, "mp_rank_") || !skip_number(text)) {
    return std::nullopt;
  }
  name.optimizer = text == kOptimizer;
  return name.optimizer || text == kModel ? std::optional(name) : std::nullopt;
}

/// A file that DeepSpeed writes only for what is not read here.
std::string_view reason_against(std::string_view file) {
  const auto has = [&](std::string_view part) { return file.find(part) != std::string_view::npos; };
  if (!file.ends_with(kModel) && !file.ends_with(kOptimizer)) {
    return {};
  }
  if (has("_expert_") || file.starts_with("expp_rank_")) {
    return "expert parallelism";
  }
  if (file.starts_with("layer_")) {
    return "pipeline parallelism";
  }
  return has("mp_rank_") && !has("mp_rank_00_") ? "tensor parallelism" : std::string_view{};
}

std::vector<fs::path> in_order(const std::map<int, fs::path>& files, const fs::path& folder) {
  std::vector<fs::path> out;
  for (const auto& [rank, path] : files) {
    if (rank != static_cast<int>(out.size())) {
      throw user_error(kWhere, "{} holds no file like {} of rank {}; copy the checkpoint again",
                       folder.string(), path.filename().string(), out.size());
    }
    out.push_back(path);
  }
  return out;
}

}  // namespace

bool has_deepspeed_files(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (parse(entry.path().filename().string())) {
      return true;
    }
  }
  return false;
}

DeepSpeedFiles find_deepspeed_files(const fs::path& folder) {
  std::map<int, fs::path> whole;
  std::map<int, fs::path> models;
  std::map<int, fs::path> optimizers;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    if (const auto reason = reason_against(file); !reason.empty()) {
      throw user_error(kWhere,
                       "{} was saved under {}, which is not read; gather it with DeepSpeed first",
                       entry.path().string(), reason);
    }
    const auto name = parse(file);
    if (!name) {
      continue;
    }
    std::map<int, fs::path>& kind =
        name->optimizer ? optimizers : (name->partitioned ? models : whole);
    if (!kind.emplace(name->rank, entry.path()).second) {
      throw user_error(kWhere,
                       "{} holds two kinds of files of rank {}, one of them {}; remove the "
                       "ones of the older run",
                       folder.string(), name->rank, file);
    }
  }
  DeepSpeedFiles out{.models = in_order(models, folder),
                     .optimizers = in_order(optimizers, folder)};
  if (out.models.empty()) {
    out.models = in_order(whole, folder);
  } else if (!whole.empty()) {
    throw user_error(kWhere,
                     "{} holds model files of stage 3 and {} of another stage; remove the ones of "
                     "the older run",
                     folder.string(), whole.begin()->second.filename().string());
  }
  if (out.models.empty()) {
    throw user_error(kWhere, "{} holds no *_model_states.pt; copy the checkpoint again",
                     folder.string());
  }
  return out;
}

TorchFiles open_all(const std::vector<fs::path>& paths) {
  TorchFiles out;
  for (const fs::path& path : paths) {
    out.push_back(TorchFile::open(path));
  }
  return out;
}

}  // namespace tandem
