#include <algorithm>
#include <utility>

#include "models/foreign/flat_groups.hpp"
#include "models/foreign/readers.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Kind = PickleValue::Kind;

constexpr std::string_view kMoments[] = {"exp_avg", "exp_avg_sq"};

/// Everything that the optimizer files hold of all parameters, and where each kind of array lies in
/// them.
struct OptimizerStates {
  TorchFiles files;
  std::vector<const PickleValue*> states;  // optimizer_state_dict of each rank
  int stage = 0;

  [[nodiscard]] std::size_t ranks() const noexcept { return files.size(); }
  /// The optimizer that DeepSpeed's own wraps.
  [[nodiscard]] const PickleValue& base(std::size_t rank) const {
    return member_of(*files[rank], *states[rank],
                     stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
  }
  /// fp32 array of a group of parameters, or of a sub-group.
  [[nodiscard]] const TorchTensor& master(std::size_t rank, std::size_t group) const {
    const PickleValue& groups =
        member_of(*files[rank], *states[rank],
                  stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups");
    const TorchTensor* out =
        group < groups.items.size() ? files[rank]->tensor(*groups.items[group]) : nullptr;
    if (out == nullptr) {
      throw files[rank]->error(fmt::format("it lacks fp32 group {}", group));
    }
    return *out;
  }
};

int stage_of(const PickleValue& state) {
  const PickleValue* stage = state.find("zero_stage");
  return stage == nullptr ? 1 : static_cast<int>(std::clamp<std::int64_t>(stage->number, 0, 4));
}

OptimizerStates open_states(const std::vector<fs::path>& paths) {
  OptimizerStates out{.files = open_all(paths)};
  for (const auto& file : out.files) {
    out.states.push_back(&member_of(*file, file->root(), "optimizer_state_dict"));
    const int stage = stage_of(*out.states.back());
    if (stage < 1 || stage > 3 || (out.states.size() > 1 && stage != out.stage)) {
      throw file->error(
          fmt::format("its ZeRO stage {} is none, or not that of the other ranks", stage));
    }
    out.stage = stage;
    const PickleValue* count = out.states.back()->find("partition_count");
    const auto of_all = static_cast<std::int64_t>(paths.size());
    const auto differs = [&](const PickleValue* value) {
      return value->is(Kind::kInt) && value->number != of_all;
    };
    if (count != nullptr && (differs(count) || std::ranges::any_of(count->items, differs))) {
      throw file->error(
          fmt::format("it is one of another number of ranks than the {} whose files "
                      "are there",
                      of_all));
    }
  }
  return out;
}

/// The arrays of one kind: kind 0 are the masters, 1 and 2 the moments. nullptr where the optimizer
/// keeps no such moment.
std::shared_ptr<FlatGroup> arrays_of(const OptimizerStates& states, std::size_t first_group,
                                     std::size_t groups, std::size_t kind) {
  auto out = std::make_shared<FlatGroup>();
  for (std::size_t rank = 0; rank < states.ranks(); ++rank) {
    FlatGroup::Rank& array = out->add_rank();
    for (std::size_t group = first_group; group < first_group + groups; ++group) {
      const TorchTensor& master = states.master(rank, group);
      const TorchTensor* tensor =
          kind == 0 ? &master : moment_of(*states.files[rank], states.base(rank), group, kind - 1);
      if (tensor == nullptr && master.numel > 0) {
        return nullptr;
      }
      // Below stage 3 masters are saved without the padding that moments have.
      if (tensor != nullptr &&
          (tensor->numel < master.numel || (states.stage == 3 && tensor->numel != master.numel))) {
        throw states.files[rank]->error(
            fmt::format("the {} of fp32 group {} has another size", kMoments[kind - 1], group));
      }
      if (tensor != nullptr) {
        array.add(states.files[rank], *tensor);
      }
    }
  }
  return out;
}

using Arrays = std::array<std::shared_ptr<FlatGroup>, 3>;

Arrays all_arrays(CheckpointBuilder& out, const OptimizerStates& states, std::size_t first_group,
                  std::size_t groups) {
  Arrays arrays;
  for (std::size_t kind = 0; kind < arrays.size(); ++kind) {
    arrays[kind] = arrays_of(states, first_group, groups, kind);
    if (arrays[kind] == nullptr) {
      out.checkpoint().notes.push_back(
          fmt::format("fp32 group {}: its optimizer keeps no {}", first_group, kMoments[kind - 1]));
    }
  }
  return arrays;
}

template <class Reader>
ImportedTensor tensor_of(const ListedParam& param, const Arrays& arrays, const Reader& reader) {
  ImportedTensor out{.name = param.name, .shape = param.shape, .master = reader(arrays[0])};
  for (std::size_t i = 0; i < out.moments.size(); ++i) {
    if (arrays[i + 1] != nullptr) {
      out.moments[i] = reader(arrays[i + 1]);
    }
  }
  return out;
}

/// Stage 3: every parameter is cut into equal parts, and a rank's parts of a sub-group's parameters
/// lie behind each other.
void add_stage_3(CheckpointBuilder& out, const OptimizerStates& states, const TorchFile& model) {
  const auto groups = read_param_shapes(model);
  const PickleValue& flats = member_of(*states.files[0], *states.states[0], "fp32_flat_groups");
  const Arrays arrays = all_arrays(out, states, 0, flats.items.size());
  std::int64_t offset = 0;
  const std::int64_t available = arrays[0]->ranks()[0].numel();
  for (const auto& group : groups) {
    for (const ListedParam& param : group) {
      const std::int64_t part = part_of(param.numel, states.ranks());
      if (part > available - offset) {
        throw model.error(
            fmt::format("its parameters are larger than the {} elements of each rank", available));
      }
      out.add(tensor_of(param, arrays,
                        [&](const std::shared_ptr<FlatGroup>& array) {
                          return partitioned_reader(array, offset, part);
                        }),
              model);
      offset += part;
    }
  }
  arrays[0]->require(offset, model, "fp32_flat_groups");
}

/// Zeros that DeepSpeed puts behind the parameters of a group; none in older versions.
std::vector<std::int64_t> paddings_of(const OptimizerStates& states, std::size_t group,
                                      std::size_t params) {
  std::vector<std::int64_t> out(params, 0);
  const PickleValue* all = states.states[0]->find("param_alignment_paddings");
  if (all == nullptr || all->is(Kind::kNone)) {
    return out;
  }
  const PickleValue* own = group < all->items.size() ? all->items[group] : nullptr;
  if (own == nullptr || own->items.size() != params) {
    throw states.files[0]->error("its param_alignment_paddings do not fit its parameters");
  }
  for (std::size_t i = 0; i < params; ++i) {
    if (!own->items[i]->is(Kind::kInt) || own->items[i]->number < 0 ||
        own->items[i]->number > (1 << 20)) {
      throw states.files[0]->error("its param_alignment_paddings are no small integers");
    }
    out[i] = own->items[i]->number;
  }
  return out;
}

/// Stages 1 and 2: a group's parameters lie behind each other in one array, in the order of
/// `param_shapes`, and the ranks hold equal parts of it; only where it ends, masters are shorter.
/// (The names in `param_slice_mappings` are wrong under round_robin_gradients.)
void add_group(CheckpointBuilder& out, const OptimizerStates& states, const TorchFile& model,
               const std::vector<ListedParam>& params, std::size_t group) {
  const Arrays arrays = all_arrays(out, states, group, 1);
  const auto& ranks = arrays[0]->ranks();
  const std::int64_t part = ranks[0].numel();
  std::int64_t available = 0;
  for (const FlatGroup::Rank& rank : ranks) {
    if (available % std::max<std::int64_t>(part, 1) == 0) {
      available += rank.numel();
    }
    if (rank.numel() > part) {
      throw model.error(
          fmt::format("the ranks' parts of fp32 group {} have sizes that do not fit "
                      "together",
                      group));
    }
  }
  const auto paddings = paddings_of(states, group, params.size());
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i].numel > available - offset) {
      throw model.error(
          fmt::format("its parameters are larger than the {} elements of fp32 group "
                      "{}",
                      available, group));
    }
    out.add(tensor_of(params[i], arrays,
                      [&](const std::shared_ptr<FlatGroup>& array) {
                        return concatenated_reader(array, offset, part);
                      }),
            model);
    offset += params[i].numel + paddings[i];
  }
  // A whole tensor more or less would be an error of assembly; padding is smaller.
  const auto most_padding = static_cast<std::int64_t>(2 * states.ranks() + 16 * params.size() + 16);
  if (available - offset > most_padding) {
    throw model.error(fmt::format("{} elements of fp32 group {} belong to no parameter",
                                  available - offset, group));
  }
}

}  // namespace

std::optional<std::int64_t> steps_of(const TorchFile& file, const PickleValue& optimizer) {
  const auto first_of = [&](const PickleValue* container) -> const PickleValue* {
    if (container == nullptr || container->items.empty()) {
      return nullptr;
    }
    return container->items[container->is(Kind::kDict) ? 1 : 0]->find("step");
  };
  for (const PickleValue* step :
       {first_of(optimizer.is(Kind::kList) ? &optimizer : optimizer.find("state")),
        first_of(optimizer.find("param_groups"))}) {
    if (const auto count = count_of(file, step)) {
      return count;
    }
  }
  return std::nullopt;
}

const TorchTensor* moment_of(const TorchFile& file, const PickleValue& optimizer,
                             std::size_t number, std::size_t which) {
  const PickleValue* state = nullptr;
  if (optimizer.is(Kind::kList)) {  // elastic checkpoints
    state = number < optimizer.items.size() ? optimizer.items[number] : nullptr;
  } else if (const PickleValue* all = optimizer.find("state")) {
    for (std::size_t i = 0; i + 1 < all->items.size(); i += 2) {
      if (all->items[i]->is(Kind::kInt) &&
          all->items[i]->number == static_cast<std::int64_t>(number)) {
        state = all->items[i + 1];
        break;
      }
    }
  }
  const PickleValue* moment = state == nullptr ? nullptr : state->find(kMoments[which]);
  return moment == nullptr ? nullptr : file.tensor(*moment);
}

ImportedCheckpoint read_deepspeed(const fs::path& folder) {
  const DeepSpeedFiles files = find_deepspeed_files(folder);
  CheckpointBuilder out("deepspeed", folder);
  const TorchFiles models = open_all(files.models);
  out.read_common(*models[0]);
  if (files.optimizers.empty()) {
    if (!read_param_shapes(*models[0]).empty()) {
      throw user_error("import",
                       "{} holds no *_optim_states.pt, in which the fp32 weights are; "
                       "copy the checkpoint again",
                       folder.string());
    }
    out.checkpoint().zero_stage = 0;
    add_stage_0(out, models[0]);
    out.finish_module(models, 0);
    return std::move(out).take();
  }
  const OptimizerStates states = open_states(files.optimizers);
  ImportedCheckpoint& checkpoint = out.checkpoint();
  checkpoint.zero_stage = states.stage;
  if (checkpoint.world_size != static_cast<int>(states.ranks()) ||
      (states.stage == 3 && models.size() != states.ranks())) {
    throw models[0]->error(
        fmt::format("it is of {} ranks, and {} optimizer files and {} model "
                    "files are there",
                    checkpoint.world_size, states.ranks(), models.size()));
  }
  out.read_scaler(*states.files[0], states.states[0]->find("loss_scaler"));
  auto steps = steps_of(*states.files[0], states.base(0));
  if (!steps) {
    steps = integer_of(*states.files[0], *states.states[0], "base_optimizer_state_step",
                       checkpoint.optimizer_steps);
  }
  checkpoint.optimizer_steps = *steps;
  if (states.stage == 3) {
    add_stage_3(out, states, *models[0]);
  } else {
    const auto groups = read_param_shapes(*models[0]);
    for (std::size_t group = 0; group < groups.size(); ++group) {
      add_group(out, states, *models[0], groups[group], group);
    }
  }
  out.finish_module(models, states.stage);
  return std::move(out).take();
}

}  // namespace tandem
