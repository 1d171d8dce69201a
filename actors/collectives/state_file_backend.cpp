#include "actors/collectives/state_file_backend.hpp"

#include <utility>

#include "runtime/util/check.hpp"

namespace tandem {

StateFileBackend::StateFileBackend(Options options)
    : options_(std::move(options)), inner_(*options_.inner), file_(*options_.file) {
  TANDEM_CHECK(options_.shard_buffer != nullptr || inner_.world() == 1,
               "only the shard of one rank is a whole block");
}

Task<> StateFileBackend::all_gather(GatherArguments arguments) {
  if (arguments.shard.place() != Place::kFile) {
    co_await inner_.all_gather(arguments);
    co_return;
  }
  const bool straight = options_.shard_buffer == nullptr;
  std::byte* memory = straight ? arguments.block.host() : options_.shard_buffer;
  co_await read({arguments.shard, memory, arguments.shard_bytes}, arguments.name);
  if (!straight) {
    arguments.shard = memory;
    co_await inner_.all_gather(arguments);
  }
}

Task<GradientNorm> StateFileBackend::reduce_scatter_add(ReduceArguments arguments) {
  return reduce(arguments, &CollectiveBackend::reduce_scatter_add);
}

Task<GradientNorm> StateFileBackend::all_reduce_add(ReduceArguments arguments) {
  return reduce(arguments, &CollectiveBackend::all_reduce_add);
}

Task<GradientNorm> StateFileBackend::reduce(ReduceArguments arguments, Reduce operation) {
  if (arguments.accumulator.place() != Place::kFile) {
    co_return co_await (inner_.*operation)(arguments);
  }
  StateFile::Transfer home{Placed<const std::byte>(arguments.accumulator),
                           options_.accumulator_buffer,
                           arguments.shard_elements * bytes_of(arguments.accumulator_type)};
  if (home.memory == nullptr) {
    TANDEM_CHECK(arguments.mode == AccumulateMode::kOverwrite &&
                     arguments.block_type == arguments.accumulator_type,
                 "without a stage the gradient is the block");
    home.memory = const_cast<std::byte*>(arguments.block.host());  // which is the accumulator, then
  } else if (arguments.mode == AccumulateMode::kAdd) {
    co_await read(home, arguments.name);
  }
  arguments.accumulator = home.memory;
  const GradientNorm norm = co_await (inner_.*operation)(arguments);
  co_await write(home, arguments.name);
  co_return norm;
}

Task<> StateFileBackend::read(StateFile::Transfer transfer, Name what) {
  try {
    co_await file_.read({transfer}, what);
  } catch (const FileError& error) {
    throw failed("read", transfer.in_file, error);
  }
}

Task<> StateFileBackend::write(StateFile::Transfer transfer, Name what) {
  try {
    co_await file_.write({transfer}, what);
  } catch (const FileError& error) {
    throw failed("write", transfer.in_file, error);
  }
}

Error StateFileBackend::failed(std::string_view done, Placed<const std::byte> array,
                               const FileError& error) {
  Error failure = nvme_failure(done, options_.name_of(array), error);
  inner_.abort(failure.what());
  return failure;
}

Task<> StateFileBackend::exchange(ExchangeArguments arguments) {
  return inner_.exchange(arguments);
}

Task<> StateFileBackend::all_to_all(AllToAllArguments arguments) {
  return inner_.all_to_all(arguments);
}

}  // namespace tandem
