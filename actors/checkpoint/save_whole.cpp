#include "actors/checkpoint/save_whole.hpp"

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "actors/storage/folder.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kPieceElements = std::int64_t{1} << 20;

Task<> write_tensors(CheckpointSave* save, const CheckpointPlan* plan, const FillTensor* fill) {
  std::vector<float> values;
  for (std::size_t file = 0; file < plan->files.size(); ++file) {
    const std::vector<TensorPlan>& tensors = plan->files[file].tensors;
    std::uint64_t offset = 0;
    for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
      const std::int64_t numel = tensors[tensor].numel();
      TANDEM_CHECK(tensors[tensor].type == TensorType::kF32, "what is filled is fp32");
      for (std::int64_t begin = 0; begin < numel; begin += kPieceElements) {
        const std::int64_t end = std::min(begin + kPieceElements, numel);
        values.resize(static_cast<std::size_t>(end - begin));
        (*fill)(file, tensor, begin, end, values.data());
        co_await save->write(file, offset, std::as_bytes(std::span(values)));
        offset += values.size() * sizeof(float);
      }
    }
  }
}

}  // namespace

Task<> save_whole(FileIo* io, CpuPool* pool, const CheckpointPlan* plan, FillTensor fill,
                  std::vector<PlannedText> texts) {
  remove_abandoned(plan->folder);
  CheckpointSave save(io, *plan, 0, 1, pool);
  std::exception_ptr failure;
  FileHandle held;  // its folder is that of a living process
  try {
    co_await save.create();
    held = hold_folder(plan->temporary);
    co_await save.open();
    co_await write_tensors(&save, plan, &fill);
    co_await save.sync();
    co_await save.commit(co_await save.hash(), std::move(texts));
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure) {
    co_await save.discard();
    std::rethrow_exception(failure);
  }
}

}  // namespace tandem
