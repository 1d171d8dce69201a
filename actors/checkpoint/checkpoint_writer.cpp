#include "actors/checkpoint/checkpoint_writer.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "actors/kernels/update/state_memory.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/round_up.hpp"
#include "runtime/when_all.hpp"

namespace tandem {

namespace {

/// The array as fp32 where it lies so; else null, and it has to be read.
template <template <class> class Pointer>
Pointer<float> as_it_lies(const UpdateBuffersAt<Pointer>& buffers, std::uint32_t array) {
  if (array == kMasterArray) {
    return buffers.whole_master();
  }
  return buffers.layout == StateLayout::kFp32
             ? static_cast<Pointer<float>>(buffers.state[array - 1])
             : Pointer<float>(nullptr);
}

/// Pieces that follow each other in the array and in the file are one.
std::vector<CheckpointPiece> joined(const std::vector<CheckpointPiece>& pieces) {
  std::vector<CheckpointPiece> runs;
  for (const CheckpointPiece& piece : pieces) {
    if (!runs.empty() && runs.back().file == piece.file && runs.back().array == piece.array &&
        runs.back().end == piece.begin &&
        runs.back().data_offset + (piece.begin - runs.back().begin) * sizeof(float) ==
            piece.data_offset) {
      runs.back().end = piece.end;
    } else {
      runs.push_back(piece);
    }
  }
  return runs;
}

void read_array(const UpdateBuffers& buffers, std::uint32_t array, float* values, std::size_t begin,
                std::size_t end) {
  if (array == kMasterArray) {
    read_master(buffers, values, begin, end);
  } else {
    read_state(buffers, array - 1, values, begin, end);
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter(Options options)
    : Actor("checkpoint writer"), options_(std::move(options)), states_(options_.units.size()) {
  TANDEM_CHECK(options_.order.size() == options_.units.size(), "every unit has its turn");
  TANDEM_CHECK(options_.piece_bytes % (kScaleGroup * sizeof(float)) == 0,
               "pieces end between blocks of state");
}

void CheckpointWriter::use_units(std::vector<Unit> units) {
  TANDEM_CHECK(units.size() == options_.units.size(), "the same units");
  options_.units = std::move(units);
}

Task<std::size_t> CheckpointWriter::handle(HoldForCheckpoint) {
  states_.assign(options_.units.size(), State::kHeld);
  holds_.assign(options_.units.size(), false);
  urgent_.clear();
  staged_in_all_ = 0;
  shares_ = options_.state_file != nullptr;
  const std::size_t held = co_await options_.optimizer.ask(FreezeUnits{});
  for (std::uint32_t unit = 0; unit < options_.units.size(); ++unit) {
    holds_[unit] = options_.units[unit].is_updated;
  }
  co_return held;
}

Task<WriteOutcome> CheckpointWriter::handle(WriteCheckpoint request) {
  TANDEM_CHECK(!states_.empty(), "units are held before they are written");
  std::exception_ptr failure;
  try {
    shares_ = shares_ && co_await request.save->has_free(options_.state_file->size_bytes());
    co_await when_all(write_all(request.save), stage_wanted(this));
  } catch (...) {
    failure = std::current_exception();
  }
  for (std::uint32_t unit = 0; unit < options_.units.size(); ++unit) {
    co_await end_hold(unit);  // of those that a failure has left
  }
  staged_.clear();
  staged_bytes_ = 0;
  buffers_ = {};
  co_return WriteOutcome{.staged_bytes = staged_in_all_, .failure = failure};
}

/// Ends every hold, and with the last of them stage_wanted().
Task<> CheckpointWriter::write_all(CheckpointSave* save) {
  std::exception_ptr failure;
  try {
    co_await write_held(save);
    co_await save->sync();
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure) {
    for (std::uint32_t unit = 0; unit < options_.units.size(); ++unit) {
      if (states_[unit] != State::kStaging) {
        co_await end_hold(unit);
      }
    }
    std::rethrow_exception(failure);
  }
}

Task<> CheckpointWriter::write_held(CheckpointSave* save) {
  for (std::size_t left = options_.units.size(); left > 0;) {
    const std::optional<std::uint32_t> unit = next_unit();
    if (!unit) {
      staging_ended_.reset();
      co_await staging_ended_;
      continue;
    }
    co_await write(save, *unit);
    --left;
  }
}

std::optional<std::uint32_t> CheckpointWriter::next_unit() {
  while (!urgent_.empty()) {
    const std::uint32_t unit = urgent_.front();
    urgent_.erase(urgent_.begin());
    if (states_[unit] == State::kHeld) {
      return unit;
    }
  }
  for (const std::uint32_t unit : options_.order) {
    if (states_[unit] == State::kHeld || states_[unit] == State::kStaged) {
      return unit;
    }
  }
  return std::nullopt;
}

Task<> CheckpointWriter::end_hold(std::uint32_t unit) {
  if (holds_[unit]) {
    holds_[unit] = false;
    co_await options_.optimizer.ask(AwaitFrozen{unit});
    co_await options_.optimizer.send(UnfreezeUnit{unit});
  }
}

// ---- staging

Task<> CheckpointWriter::stage_wanted(CheckpointWriter* self) {
  while (const auto unit = co_await self->options_.optimizer.ask(NextWanted{})) {
    if (self->states_[*unit] != State::kHeld) {
      continue;  // it is being written
    }
    if (self->staged_bytes_ + self->staged_bytes_of(*unit) > self->options_.staging_bytes) {
      self->urgent_.push_back(*unit);
      continue;
    }
    co_await self->stage(*unit);
  }
}

std::size_t CheckpointWriter::staged_bytes_of(std::uint32_t unit) const {
  std::size_t elements = 0;
  for (const CheckpointPiece& piece : options_.units[unit].pieces) {
    elements += piece.end - piece.begin;
  }
  return elements * sizeof(float);
}

Task<> CheckpointWriter::stage(std::uint32_t unit) {
  states_[unit] = State::kStaging;
  try {
    co_await copy_to_staging(unit);
  } catch (...) {
    states_[unit] = State::kHeld;  // write_held() waits for it, and its hold must end
    staging_ended_.set();
    throw;
  }
  states_[unit] = State::kStaged;
  co_await end_hold(unit);
  staging_ended_.set();
}

Task<> CheckpointWriter::copy_to_staging(std::uint32_t unit) {
  const std::size_t bytes = staged_bytes_of(unit);
  const HostState state = co_await options_.state_of(unit);
  Staged& staged = staged_[unit];
  for (const CheckpointPiece& piece : options_.units[unit].pieces) {
    HostBuffer& array = staged.arrays[piece.array];
    if (array.size_bytes() < piece.end * sizeof(float)) {
      array = HostBuffer(options_.units[unit].elements * sizeof(float));
    }
  }
  staged_bytes_ += bytes;
  staged_in_all_ += bytes;
  const std::vector<Run> runs = runs_of(options_.units[unit].pieces);
  const auto read_one = [&](std::size_t i) {
    const Run& run = runs[i];
    read_array(state.buffers, run.piece->array,
               staged.arrays[run.piece->array].as<float>() + run.begin, run.begin, run.end);
  };
  co_await options_.pool->for_chunks(runs.size(), read_one, {.name = "checkpoint: stage"});
}

// ---- writing

Task<> CheckpointWriter::write(CheckpointSave* save, std::uint32_t unit) {
  if (std::exchange(states_[unit], State::kWriting) == State::kStaged) {
    co_await write_staged(save, unit);
    staged_bytes_ -= staged_bytes_of(unit);
    staged_.erase(unit);
  } else if (!options_.units[unit].pieces.empty()) {
    if (holds_[unit]) {
      co_await options_.optimizer.ask(AwaitFrozen{unit});
    }
    const std::vector<CheckpointPiece> left = co_await share(save, unit);
    if (!left.empty()) {
      co_await write_state(save, unit, &left);
    }
  }
  states_[unit] = State::kWritten;
  co_await end_hold(unit);
}

Task<> CheckpointWriter::write_staged(CheckpointSave* save, std::uint32_t unit) {
  const Staged& staged = staged_.at(unit);
  for (const Run& run : runs_of(options_.units[unit].pieces)) {
    co_await write_values(save, run, staged.arrays[run.piece->array].as<float>() + run.begin);
  }
}

Task<std::vector<CheckpointPiece>> CheckpointWriter::share(CheckpointSave* save,
                                                           std::uint32_t unit) {
  const std::vector<CheckpointPiece>& pieces = options_.units[unit].pieces;
  if (!shares_) {
    co_return pieces;
  }
  const PlacedBuffers lies_at = options_.lies_at(unit);
  std::vector<CheckpointPiece> left;
  for (const CheckpointPiece& piece : joined(pieces)) {
    const Placed<float> array = as_it_lies(lies_at, piece.array);
    if (array.place() != Place::kFile ||
        !co_await share_piece(save, piece, Placed<const std::byte>(array + piece.begin))) {
      left.push_back(piece);
    }
  }
  co_return left;
}

/// Whole blocks are shared, what is left at both ends is copied.
Task<bool> CheckpointWriter::share_piece(CheckpointSave* save, CheckpointPiece piece,
                                         Placed<const std::byte> in_file) {
  const std::size_t block = UncachedFile::block_bytes();
  const std::uint64_t from = options_.state_file->offset_of(in_file);
  const std::uint64_t into = save->offset_of(piece.file, piece.data_offset);
  const std::size_t bytes = (piece.end - piece.begin) * sizeof(float);
  const std::size_t head = (block - into % block) % block;
  if (!shares_ || from % block != into % block || bytes < head + UncachedFile::kWorthBytes) {
    co_return false;
  }
  const std::size_t tail = (bytes - head) % block;
  const std::size_t whole = bytes - head - tail;
  co_await check_as_written(in_file + head, whole);
  shares_ = co_await save->share(piece.file, piece.data_offset + head, &options_.state_file->file(),
                                 from + head, whole);
  if (!shares_) {
    co_return false;
  }
  co_await copy_edge(save, piece, 0, in_file, head);
  co_await copy_edge(save, piece, head + whole, in_file + head + whole, tail);
  co_return true;
}

/// Shared blocks are not read before their hash is taken: bytes that the disk or another
/// program has changed would count as the run's.
Task<> CheckpointWriter::check_as_written(Placed<const std::byte> in_file, std::size_t bytes) {
  StateFile& file = *options_.state_file;
  const HostBuffer piece(std::min(bytes, kStoragePieceBytes));
  for (std::size_t at = 0; at < bytes; at += piece.size_bytes()) {
    co_await file.read({{in_file + at, piece.data(), std::min(piece.size_bytes(), bytes - at)}},
                       "checkpoint");
  }
}

Task<> CheckpointWriter::copy_edge(CheckpointSave* save, CheckpointPiece piece, std::uint64_t at,
                                   Placed<const std::byte> in_file, std::size_t bytes) {
  if (bytes == 0) {
    co_return;
  }
  StateFile& file = *options_.state_file;
  const std::size_t past = file.offset_of(in_file) % StateFile::kAlignment;
  const HostBuffer blocks(round_up(past + bytes, StateFile::kAlignment));
  co_await file.read(
      {{file.data() + (file.offset_of(in_file) - past), blocks.data(), blocks.size_bytes()}},
      "checkpoint");
  co_await save->write(piece.file, piece.data_offset + at, blocks.span().subspan(past, bytes));
}

/// While one run is written, the next one is read.
Task<> CheckpointWriter::write_state(CheckpointSave* save, std::uint32_t unit,
                                     const std::vector<CheckpointPiece>* pieces) {
  const HostState state = co_await options_.state_of(unit);
  const std::vector<Run> runs = runs_of(*pieces);
  const auto is_read = [&](std::size_t i) {
    return i < runs.size() && as_it_lies(state.buffers, runs[i].piece->array) == nullptr;
  };
  const auto write_run = [&](std::size_t i) {
    const float* values = is_read(i)
                              ? buffers_[i % 2].as<float>()
                              : as_it_lies(state.buffers, runs[i].piece->array) + runs[i].begin;
    return write_values(save, runs[i], values);
  };
  const auto read_run = [&](std::size_t i) {
    if (buffers_[i % 2].size_bytes() == 0) {
      buffers_[i % 2] = HostBuffer(options_.piece_bytes);
    }
    return fill(&state.buffers, runs[i], buffers_[i % 2].as<float>());
  };
  if (is_read(0)) {
    co_await read_run(0);
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (is_read(i + 1)) {
      co_await when_all(write_run(i), read_run(i + 1));
    } else {
      co_await write_run(i);
    }
  }
}

Task<> CheckpointWriter::write_values(CheckpointSave* save, Run run, const float* values) {
  const std::uint64_t at = (run.begin - run.piece->begin) * sizeof(float);
  co_await save->write(run.piece->file, run.piece->data_offset + at,
                       std::as_bytes(std::span(values, run.end - run.begin)));
}

Task<> CheckpointWriter::fill(const UpdateBuffers* buffers, Run run, float* values) {
  const auto read = [=] { read_array(*buffers, run.piece->array, values, run.begin, run.end); };
  co_await options_.pool->run(read, "checkpoint: read");
}

/// Pieces cut into runs that begin and end between blocks of state, or where the piece does.
std::vector<CheckpointWriter::Run> CheckpointWriter::runs_of(
    const std::vector<CheckpointPiece>& pieces) const {
  const std::size_t most = options_.piece_bytes / sizeof(float);
  std::vector<Run> runs;
  for (const CheckpointPiece& piece : pieces) {
    for (std::size_t begin = piece.begin; begin < piece.end;) {
      const std::size_t end = std::min((begin / most + 1) * most, piece.end);
      runs.push_back({&piece, begin, end});
      begin = end;
    }
  }
  return runs;
}

}  // namespace tandem
