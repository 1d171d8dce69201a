// Reads stage 0. The optimizer numbers its parameters group after group, and no file gives their
// names. The module lists the names in its own order, and each group keeps that order. So the names
// are assigned to the groups by shapes, and by values if there are fp32 copies. If several
// assignments fit, the moments are left out and not guessed.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "models/foreign/flat_groups.hpp"
#include "models/foreign/readers.hpp"

namespace tandem {
namespace {

using Kind = PickleValue::Kind;

constexpr std::size_t kMostWays = 256;  // that are followed at once
constexpr std::int64_t kComparedElements = 4096;
constexpr std::string_view kMoments[] = {"exp_avg", "exp_avg_sq"};

struct ModuleParam {
  const PickleValue* name = nullptr;
  const TorchTensor* tensor = nullptr;
};

/// One parameter of the optimizer.
struct Entry {
  const TorchTensor* master = nullptr;  // where there are fp32 copies
  std::array<const TorchTensor*, 2> moments = {};
};
using Groups = std::vector<std::vector<Entry>>;

/// Parameters of the module, each tied one once.
std::vector<ModuleParam> params_of(const TorchFile& model) {
  const std::set<std::string_view> buffers = buffer_names_of(model);
  std::vector<ModuleParam> out;
  std::set<std::tuple<std::size_t, std::int64_t, std::vector<std::int64_t>>> seen;
  const PickleValue& module = member_of(model, model.root(), "module");
  for (std::size_t i = 0; i + 1 < module.items.size(); i += 2) {
    const TorchTensor* tensor = model.tensor(*module.items[i + 1]);
    const bool own =
        tensor != nullptr && !buffers.contains(module.items[i]->text) &&
        (tensor->numel == 0 || seen.emplace(tensor->storage, tensor->offset, tensor->shape).second);
    if (own) {
      out.push_back({module.items[i], tensor});
    }
  }
  return out;
}

/// Whether a weight of the module is its fp32 copy, rounded.
bool is_rounded(const TorchFile& file, const TorchTensor& weight, const TorchTensor& master,
                std::int64_t offset) {
  const std::int64_t count = std::min(weight.numel, kComparedElements);
  const bool rounds = weight.type == TensorType::kF32 || weight.type == TensorType::kBF16 ||
                      weight.type == TensorType::kF16;
  if (!rounds || offset + weight.numel > master.numel) {
    return false;
  }
  std::vector<float> values(static_cast<std::size_t>(count));
  std::vector<std::byte> stored(values.size() * bytes_of(weight.type));
  std::vector<std::byte> rounded(stored.size());
  file.read_f32(master, offset, offset + count, values.data());
  file.read_stored(weight, 0, count, stored);
  convert_from_f32(weight.type, values, rounded);
  return rounded == stored;
}

bool fits(const TorchFile& file, const ModuleParam& param, const Entry& entry) {
  const TorchTensor* like = entry.master != nullptr ? entry.master : entry.moments[0];
  if (like == nullptr) {
    return true;  // never trained
  }
  return like->shape == param.tensor->shape &&
         (entry.master == nullptr || is_rounded(file, *param.tensor, *entry.master, 0));
}

/// Deals the module's parameters out to the groups. The entry of each parameter, nullptr for one
/// that no group has; nothing if no way fits, or more than one.
std::optional<std::vector<const Entry*>> deal(const TorchFile& file,
                                              const std::vector<ModuleParam>& params,
                                              const Groups& groups) {
  using Taken = std::vector<std::size_t>;  // from each group
  struct Way {
    std::size_t ways = 0;  // 2: or more
    Taken before;
    std::size_t group = 0;  // groups.size(): none
  };
  std::vector<std::map<Taken, Way>> levels(params.size() + 1);
  levels[0][Taken(groups.size(), 0)].ways = 1;
  std::size_t entries = 0;
  for (const auto& group : groups) {
    entries += group.size();
  }
  for (std::size_t p = 0; p < params.size(); ++p) {
    for (const auto& [taken, way] : levels[p]) {
      const std::size_t taken_count = std::accumulate(taken.begin(), taken.end(), std::size_t{0});
      const auto step = [&](Taken next, std::size_t group) {
        Way& into = levels[p + 1][std::move(next)];
        into.ways = std::min<std::size_t>(2, into.ways + way.ways);
        into.before = taken;
        into.group = group;
      };
      for (std::size_t g = 0; g < groups.size(); ++g) {
        if (taken[g] < groups[g].size() && fits(file, params[p], groups[g][taken[g]])) {
          Taken next = taken;
          ++next[g];
          step(std::move(next), g);
        }
      }
      if (params.size() - p > entries - taken_count) {  // enough are left without this one
        step(taken, groups.size());
      }
    }
    if (levels[p + 1].size() > kMostWays) {
      return std::nullopt;
    }
  }
  Taken taken;
  for (const auto& group : groups) {
    taken.push_back(group.size());
  }
  if (const auto end = levels.back().find(taken);
      end == levels.back().end() || end->second.ways != 1) {
    return std::nullopt;
  }
  std::vector<const Entry*> out(params.size(), nullptr);
  for (std::size_t p = params.size(); p-- > 0;) {
    const Way& way = levels[p + 1].at(taken);
    if (way.group < groups.size()) {
      out[p] = &groups[way.group][way.before[way.group]];
    }
    taken = way.before;
  }
  return out;
}

/// state number -> moments
std::map<std::int64_t, std::array<const TorchTensor*, 2>> moments_of(const TorchFile& file,
                                                                     const PickleValue& optimizer) {
  std::map<std::int64_t, std::array<const TorchTensor*, 2>> out;
  const PickleValue& states = member_of(file, optimizer, "state");
  for (std::size_t i = 0; i + 1 < states.items.size(); i += 2) {
    auto& moments = out[states.items[i]->number];
    for (std::size_t m = 0; m < moments.size(); ++m) {
      const PickleValue* value = states.items[i + 1]->find(kMoments[m]);
      moments[m] = value == nullptr ? nullptr : file.tensor(*value);
    }
  }
  return out;
}

Groups groups_of(const TorchFile& file, const PickleValue& optimizer, const PickleValue* masters) {
  const auto moments = moments_of(file, optimizer);
  const PickleValue& param_groups = member_of(file, optimizer, "param_groups");
  Groups out;
  for (const PickleValue* group : param_groups.items) {
    auto& entries = out.emplace_back();
    const PickleValue& numbers = member_of(file, *group, "params");
    const PickleValue* copies = nullptr;
    if (masters != nullptr && out.size() <= masters->items.size()) {
      copies = masters->items[out.size() - 1];
    }
    for (std::size_t i = 0; i < numbers.items.size(); ++i) {
      Entry entry;
      if (const auto found = moments.find(numbers.items[i]->number); found != moments.end()) {
        entry.moments = found->second;
      }
      if (copies != nullptr && i < copies->items.size()) {
        entry.master = file.tensor(*copies->items[i]);
      }
      entries.push_back(entry);
    }
  }
  return out;
}

ImportedTensor tensor_of(const std::shared_ptr<const TorchFile>& model, const ModuleParam& param,
                         const Entry& entry) {
  const TorchTensor& master = entry.master != nullptr ? *entry.master : *param.tensor;
  ImportedTensor out{.name = std::string(param.name->text),
                     .shape = param.tensor->shape,
                     .type = master.type,
                     .master = reader_of(model, master)};
  for (std::size_t m = 0; m < out.moments.size(); ++m) {
    if (entry.moments[m] == nullptr) {
      continue;
    }
    if (entry.moments[m]->numel != param.tensor->numel) {
      throw model->error(fmt::format("the {} of \"{}\" has another size", kMoments[m],
                                     printable(param.name->text)));
    }
    out.moments[m] = reader_of(model, *entry.moments[m]);
  }
  return out;
}

/// The fused optimizers of 16 bits: one flat array per group, and the module's weights are parts of
/// one storage per group in the same order.
bool add_flat_group(CheckpointBuilder& out, const std::shared_ptr<const TorchFile>& model,
                    std::vector<ModuleParam>& params, const TorchTensor& master,
                    const std::array<const TorchTensor*, 2>& moments) {
  std::map<std::size_t, std::vector<ModuleParam>> by_storage;
  for (const ModuleParam& param : params) {
    by_storage[param.tensor->storage].push_back(param);
  }
  for (auto& [storage, members] : by_storage) {
    std::ranges::sort(members, {}, [](const ModuleParam& param) {
      return std::pair(param.tensor->offset, param.tensor->numel);
    });
    std::int64_t offset = 0;
    const bool whole = std::ranges::all_of(members, [&](const ModuleParam& param) {
      const bool next = param.tensor->contiguous && param.tensor->offset == offset &&
                        is_rounded(*model, *param.tensor, master, offset);
      offset += param.tensor->numel;
      return next;
    });
    if (!whole || offset != master.numel) {
      continue;
    }
    const auto reader = [&](const TorchTensor& flat, const ModuleParam& param) {
      auto array = std::make_shared<FlatGroup>();
      array->add_rank().add(model, flat);
      return partitioned_reader(std::move(array), param.tensor->offset,
                                std::max<std::int64_t>(param.tensor->numel, 1));
    };
    for (const ModuleParam& param : members) {
      ImportedTensor tensor{.name = std::string(param.name->text),
                            .shape = param.tensor->shape,
                            .master = reader(master, param)};
      for (std::size_t m = 0; m < moments.size(); ++m) {
        if (moments[m] != nullptr && moments[m]->numel == master.numel) {
          tensor.moments[m] = reader(*moments[m], param);
        }
      }
      out.add(std::move(tensor), *model);
    }
    std::erase_if(params,
                  [&](const ModuleParam& param) { return param.tensor->storage == storage; });
    return true;
  }
  return false;
}

bool add_flat_groups(CheckpointBuilder& out, const std::shared_ptr<const TorchFile>& model,
                     const PickleValue& flats, const PickleValue& optimizer) {
  std::vector<ModuleParam> params = params_of(*model);
  const auto moments = moments_of(*model, optimizer);
  for (std::size_t g = 0; g < flats.items.size(); ++g) {
    const TorchTensor* master = model->tensor(*flats.items[g]);
    const auto own = moments.find(static_cast<std::int64_t>(g));
    if (master == nullptr ||
        !add_flat_group(out, model, params, *master,
                        own == moments.end() ? std::array<const TorchTensor*, 2>{} : own->second)) {
      return false;
    }
  }
  return true;
}

bool add_dealt(CheckpointBuilder& out, const std::shared_ptr<const TorchFile>& model,
               const Groups& groups) {
  const std::vector<ModuleParam> params = params_of(*model);
  const auto dealt = deal(*model, params, groups);
  if (!dealt) {
    return false;
  }
  for (std::size_t p = 0; p < params.size(); ++p) {
    const Entry* entry = (*dealt)[p];
    if (entry != nullptr && (entry->master != nullptr || entry->moments[0] != nullptr)) {
      out.add(tensor_of(model, params[p], *entry), *model);
    }
  }
  return true;
}

/// Parameters of which the file does not say whether they are trained.
void add_weights(CheckpointBuilder& out, const std::shared_ptr<const TorchFile>& model) {
  for (const ModuleParam& param : params_of(*model)) {
    if (!out.has(param.name->text)) {
      out.add_stored(*param.name, model, *param.tensor, false, false);
    }
  }
}

}  // namespace

void add_stage_0(CheckpointBuilder& out, const std::shared_ptr<const TorchFile>& model) {
  const PickleValue* own = model->root().find("optimizer");
  ImportedCheckpoint& checkpoint = out.checkpoint();
  if (own == nullptr || !own->is(Kind::kDict)) {
    checkpoint.notes.emplace_back("optimizer: the checkpoint holds none");
    add_weights(out, model);
    return;
  }
  const PickleValue* wrapped = own->find("optimizer_state_dict");
  const PickleValue& optimizer = wrapped == nullptr ? *own : *wrapped;
  checkpoint.optimizer_steps = steps_of(*model, optimizer).value_or(checkpoint.optimizer_steps);
  const double scale = number_of(*model, own->find("cur_scale")).value_or(1);
  const PickleValue* dynamic = own->find("dynamic_loss_scale");
  if (scale != 1 || (dynamic != nullptr && dynamic->number != 0)) {
    checkpoint.scaler =
        LossScaleState{.scale = scale,
                       .step = integer_of(*model, *own, "cur_iter", 0),
                       .last_overflow = integer_of(*model, *own, "last_overflow_iter", -1),
                       .hysteresis = 1};
  }
  const PickleValue* flats = own->find("fp32_groups_flat");
  const bool known =
      flats != nullptr
          ? add_flat_groups(out, model, *flats, optimizer)
          : add_dealt(out, model, groups_of(*model, optimizer, own->find("fp32_groups")));
  if (!known) {
    checkpoint.notes.emplace_back(
        "optimizer: its parameters have no names at stage 0, and shapes and values fit more than "
        "one parameter, or none; save at ZeRO stage 1 to keep its state");
    add_weights(out, model);
  }
}

}  // namespace tandem
