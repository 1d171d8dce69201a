#include "engine/checkpoint/checkpoint_load.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace fs = std::filesystem;

CheckpointLoad::CheckpointLoad(Checkpointer& saves, Rank& rank) : saves_(saves), rank_(rank) {}

Task<> CheckpointLoad::inspect(std::string folder, bool is_one) {
  protocol_ = co_await saves_.protocol_of(folder);
  const bool several = protocol_->disks().are_several();
  std::optional<std::vector<std::string>> names;
  if (!several) {
    names = co_await names_in(&saves_.files(), folder);
    if (!names) {
      throw user_error("resume", "there is no folder {}; give a checkpoint or a folder of them",
                       folder);
    }
  }
  found_ = co_await protocol_->find(&saves_.files(), folder, is_one);
  if (!found_.candidates.empty()) {
    co_return;
  }
  std::string broken = found_.broken.empty() ? "" : found_.broken.front();
  if (several) {
    broken = co_await protocol_->first_word(std::move(broken));
  }
  if (names && std::ranges::find(*names, "trainer_state.json") != names->end()) {
    throw user_error("resume",
                     "{} is a checkpoint of Transformers' Trainer: its weights are a model "
                     "(--model_name {}), and its optimizer's state is not read",
                     folder, folder);
  }
  throw user_error("resume", "{} holds no whole checkpoint{}{}; give another folder", folder,
                   several ? " on any host" : "",
                   broken.empty() ? "" : fmt::format(" ({})", broken));
}

Task<std::string> CheckpointLoad::open(Candidate candidate) {
  path_ = candidate.path();
  std::string fault;
  held_ = co_await protocol_->read_manifests(&saves_.files(), candidate, &fault);
  if (const std::string missing = fault.empty() && candidate.in_slices ? missing_in(held_) : "";
      !missing.empty()) {
    co_return fmt::format("{}: {}", path_, missing);
  }
  if (fault.empty()) {
    fault = co_await verify();
  }
  if (fault.empty()) {
    fault = co_await name_sealed(&candidate);
  }
  runs_.clear();
  for (const HeldCheckpoint& held : held_) {
    runs_.emplace_back(held);
  }
  co_return fault.empty() ? "" : fmt::format("{} is damaged: {}", path_, fault);
}

/// The ranks of a disk hash its files between them.
Task<std::string> CheckpointLoad::verify() {
  const HeldCheckpoint& here = this->here();
  std::string fault;
  if (!here.folder.empty()) {
    const std::vector<std::uint32_t> sharers = protocol_->disks().ranks_of(protocol_->own_disk());
    const auto part = std::ranges::find(sharers, rank_.layout().sharding.rank) - sharers.begin();
    try {
      const std::vector<std::string> faults = co_await verify_entries(
          &saves_.files(), here.folder, here.files, static_cast<std::uint32_t>(part),
          static_cast<std::uint32_t>(sharers.size()), &rank_.copy_pool());
      fault = faults.empty() ? "" : faults.front();
    } catch (const Error& error) {
      fault = error.what();
    }
  }
  co_return co_await protocol_->first_word(std::move(fault));
}

/// A save that was cut off when all disks had sealed it: those that have not given it its name do
/// so now.
Task<std::string> CheckpointLoad::name_sealed(const Candidate* candidate) {
  const auto final_path = [&](std::size_t disk) {
    return fs::path(candidate->paths[disk]).parent_path() / candidate->name;
  };
  bool any_sealed = false;
  for (std::size_t disk = 0; disk < held_.size(); ++disk) {
    any_sealed = any_sealed || (candidate->in_slices && !held_[disk].folder.empty() &&
                                fs::path(held_[disk].folder).filename() != candidate->name);
  }
  if (!any_sealed) {
    co_return "";
  }
  std::string fault;
  const HeldCheckpoint& here = this->here();
  const fs::path name = final_path(protocol_->own_disk());
  if (protocol_->is_first() && !here.folder.empty() && here.folder != name) {
    try {
      co_await give_name(&saves_.files(), here.folder, name);
    } catch (const Error& error) {
      fault = error.what();
    }
  }
  fault = co_await protocol_->first_word(std::move(fault));
  for (std::size_t disk = 0; disk < held_.size() && fault.empty(); ++disk) {
    if (!held_[disk].folder.empty()) {
      held_[disk].folder = final_path(disk);
    }
  }
  co_return fault;
}

const HeldCheckpoint* CheckpointLoad::any() const {
  const auto found =
      std::ranges::find_if(held_, [](const auto& held) { return !held.folder.empty(); });
  TANDEM_CHECK(found != held_.end(), "a checkpoint that was opened lies on a disk");
  return &*found;
}

Task<std::string> CheckpointLoad::text(std::string name) {
  std::string text;
  if (!here().folder.empty()) {
    text = co_await read_text(&saves_.files(), here().folder + "/" + name);
  }
  std::vector<std::string> texts = co_await protocol_->of_disks(std::move(text));
  co_return std::move(texts[static_cast<std::size_t>(any() - held_.data())]);
}

void CheckpointLoad::take(std::vector<std::string> arrays) {
  require_shapes(*any(), rank_.layout(), arrays);
  CheckpointSource source(here(), arrays);
  take(std::move(arrays), std::move(source));
}

void CheckpointLoad::take(std::vector<std::string> arrays, CheckpointSource source) {
  TANDEM_CHECK(!arrays.empty(), "weights are read at least");
  arrays_ = std::move(arrays);
  source_ = std::move(source);
}

bool CheckpointLoad::has_unit(std::size_t unit) const {
  const UnitSpec& spec = rank_.layout().model.units[unit];
  if (!spec.frozen() || spec.parameters.empty()) {
    return true;
  }
  return std::ranges::any_of(any()->whole, [&](const PlannedFile& file) {
    return array_of_file(file.name) == arrays_.front() &&
           std::ranges::find(file.tensors, spec.parameters.front().name, &TensorPlan::name) !=
               file.tensors.end();
  });
}

Task<> CheckpointLoad::fetch(std::size_t unit) {
  source_->drop_lent();
  co_await protocol_->gather(
      {.layout = &rank_.layout(), .arrays = &arrays_, .runs = &runs_, .source = &*source_}, unit);
}

}  // namespace tandem
