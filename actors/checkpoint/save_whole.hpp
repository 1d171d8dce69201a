// actors/checkpoint/save_whole.hpp — writes a whole checkpoint in one process that does not train.
//
// Invariant: the checkpoint gets its name when all of it is on the disk. After a failure nothing of
// it remains.
// Thread rule: the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "actors/checkpoint/checkpoint_save.hpp"

namespace tandem {

/// Fills `out` with the elements [begin, end) of a tensor of the plan.
using FillTensor = std::function<void(std::size_t file, std::size_t tensor, std::int64_t begin,
                                      std::int64_t end, float* out)>;

/// Writes the plan's tensors, which are all fp32, and the texts. The pointers must stay valid until
/// the task ends. An exception of `fill` is rethrown.
Task<> save_whole(FileIo* io, CpuPool* pool, const CheckpointPlan* plan, FillTensor fill,
                  std::vector<PlannedText> texts);

}  // namespace tandem
