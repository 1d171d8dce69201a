// actors/checkpoint/save_whole.hpp — a whole checkpoint, written by one process that trains
// nothing.
//
// Invariant: the checkpoint takes its name when all of it is on the disk, or nothing of it is left.
// Thread rule: the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "actors/checkpoint/checkpoint_save.hpp"

namespace tandem {

/// Elements [begin, end) of a tensor of the plan, to `out`.
using FillTensor = std::function<void(std::size_t file, std::size_t tensor, std::int64_t begin,
                                      std::int64_t end, float* out)>;

/// Writes the plan's tensors, all of them fp32, and the texts. The arguments behind pointers
/// outlive the task. Throws what `fill` throws.
Task<> save_whole(FileIo* io, CpuPool* pool, const CheckpointPlan* plan, FillTensor fill,
                  std::vector<PlannedText> texts);

}  // namespace tandem
