// tests/support/small_checkpoint.hpp — a small checkpoint, and saving it by N ranks of one loop.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "actors/checkpoint/checkpoint_save.hpp"
#include "runtime/system/nonce.hpp"
#include "runtime/util/random.hpp"

namespace tandem {

/// Three files of tensors: odd sizes, an empty one, one of a single element.
inline CheckpointPlan small_plan(const std::string& parent, std::int64_t step,
                                 std::int64_t scale = 1) {
  const std::string folder = parent + "/" + checkpoint_name(step);
  return {
      .step = step,
      .folder = folder,
      .temporary = temporary_checkpoint(folder, nonce_text(1)),
      .files = {
          {"master-00000.safetensors",
           {{"embed.weight", TensorType::kF32, {7 * scale, 5}},
            {"nothing", TensorType::kF32, {0, 3}},
            {"norm.weight", TensorType::kF32, {}}}},
          {"exp_avg-00000.safetensors", {{"embed.weight", TensorType::kBF16, {33 * scale}}}},
          {"exp_avg_sq-00000.safetensors", {{"embed.weight", TensorType::kU8, {401 * scale}}}}}};
}

inline std::vector<PlannedText> small_texts(std::int64_t step) {
  return {{"state.json", fmt::format("{{\"step\": {}, \"loss\": 1.25}}\n", step)},
          {"client_state.json", "{}\n"},
          {"model.safetensors.index.json", "{\"weight_map\": {}}\n"}};
}

/// The data of file number `file` at `step`, behind its header.
inline std::vector<std::byte> data_of(const CheckpointPlan& plan, std::size_t file) {
  const PlannedFile& planned = plan.files[file];
  std::vector<std::byte> data(planned.size_bytes() - planned.header_bytes());
  Random random = Random(static_cast<std::uint64_t>(plan.step)).fork(file);
  // Eight bytes at a time, each without a bit that every NaN and infinity has in one of its bytes.
  constexpr std::uint64_t kFinite = 0xBFBF'BFBF'BFBF'BFBF;
  for (std::size_t at = 0; at < data.size(); at += sizeof(kFinite)) {
    const std::uint64_t drawn = random.next() & kFinite;
    std::memcpy(&data[at], &drawn, std::min(sizeof(drawn), data.size() - at));
  }
  return data;
}

/// One rank writes its slice of every file, in pieces.
inline Task<> write_slices(CheckpointSave* save, const CheckpointPlan* plan, std::uint32_t rank,
                           std::uint32_t world, std::size_t piece_bytes) {
  for (std::size_t file = 0; file < plan->files.size(); ++file) {
    const std::vector<std::byte> data = data_of(*plan, file);
    const std::size_t end = data.size() * (rank + 1) / world;
    for (std::size_t at = data.size() * rank / world; at < end; at += piece_bytes) {
      const std::size_t size = std::min(piece_bytes, end - at);
      co_await save->write(file, at, std::span(data).subspan(at, size));
    }
  }
}

inline Task<> save_in_steps(std::vector<std::unique_ptr<CheckpointSave>>* ranks,
                            const CheckpointPlan* plan, std::size_t piece_bytes) {
  const auto world = static_cast<std::uint32_t>(ranks->size());
  co_await ranks->front()->create();
  for (const auto& rank : *ranks) {
    co_await rank->open();
  }
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    co_await write_slices((*ranks)[rank].get(), plan, rank, world, piece_bytes);
  }
  for (const auto& rank : *ranks) {
    co_await rank->sync();
  }
  std::vector<ManifestFile> all;
  for (std::uint32_t rank = world; rank-- > 0;) {  // in another order than the plan's
    for (ManifestFile& file : co_await (*ranks)[rank]->hash()) {
      all.push_back(std::move(file));
    }
  }
  co_await ranks->front()->commit(std::move(all), small_texts(plan->step));
}

/// Saves `plan` by `world` ranks, one after the other; discards what fails, and rethrows.
inline Task<> save_checkpoint(FileIo* io, CheckpointPlan plan, std::uint32_t world,
                              std::size_t piece_bytes = 100) {
  std::vector<std::unique_ptr<CheckpointSave>> ranks;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    ranks.push_back(std::make_unique<CheckpointSave>(io, plan, rank, world));
  }
  std::exception_ptr error;
  try {
    co_await save_in_steps(&ranks, &plan, piece_bytes);
  } catch (const Error&) {
    error = std::current_exception();
  }
  if (error != nullptr) {
    co_await ranks.front()->discard();
    std::rethrow_exception(error);
  }
}

/// The faults of the whole checkpoint, its manifest included.
inline Task<std::vector<std::string>> faults_of(FileIo* io, std::string folder) {
  std::vector<std::string> faults;
  try {
    faults = co_await verify_files(io, folder, co_await read_manifest(io, folder), 0, 1);
  } catch (const Error& error) {
    faults.emplace_back(error.what());
  }
  co_return faults;
}

}  // namespace tandem
