#include "actors/optimizer/device_updates.hpp"

#include <type_traits>
#include <utility>

#include "runtime/util/check.hpp"
#include "runtime/util/round_up.hpp"

namespace tandem {
namespace {

constexpr std::size_t kStageAlignment = 64;

/// The slice's part of each range, counted from the slice's first element.
void clip_ranges(const std::vector<UpdateRange>& ranges, const UpdateSlice& slice,
                 std::vector<UpdateRange>& clipped) {
  clipped.clear();
  visit_ranges(ranges, slice.begin, slice.end,
               [&](const UpdateRange& range, std::size_t first, std::size_t last) {
                 clipped.push_back({first - slice.begin, last - slice.begin, range.group});
               });
}

/// Also of what a pass only reads.
template <class T>
std::byte* bytes_at(T* array) noexcept {
  return reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<T>*>(array));
}

}  // namespace

DeviceUpdates::DeviceUpdates(Options options)
    : options_(std::move(options)),
      in_(options_.device->stream("h2d state")),
      kernels_(options_.device->stream("updates")),
      out_(options_.device->stream("d2h state")),
      buffers_(kSlices, options_.buffers.device(), options_.buffer_bytes) {}

std::size_t DeviceUpdates::prepare(TransferBuffer& buffer, const UpdateSlice& slice) const {
  UpdatedUnit& view = buffer.view;
  const PlacedBuffers& buffers = slice.unit->buffers;
  view.buffers = {.gradient_type = buffers.gradient_type,
                  .weight_type = buffers.weight_type,
                  .layout = buffers.layout,
                  .position = buffers.position + slice.begin};
  view.shadow = {};
  clip_ranges(slice.unit->ranges, slice, view.ranges);
  buffer.arrays.clear();
  std::size_t used = 0;
  std::size_t touched = 0;
  const auto place = [&]<class T>(const Placed<T>& home, const ArrayUse& use, T*& array) {
    if (home == nullptr || !(use.read || use.written)) {
      return;
    }
    const std::size_t first = use.bytes_of(slice.begin);
    std::byte* at = nullptr;
    if (home.place() == Place::kDevice) {
      at = bytes_at(home.device()) + first;
    } else {
      TANDEM_CHECK(buffer.memory != nullptr, "state on the host passes through a buffer");
      at = buffer.memory + used;
      used += round_up(use.bytes_of(slice.end - slice.begin), kStageAlignment);
      buffer.arrays.push_back({bytes_at(home.host()) + first, at, use});
    }
    array = reinterpret_cast<T*>(at);
    for (const UpdateRange& range : view.ranges) {
      touched += (use.read + use.written) * use.bytes_of(range.end - range.begin);
    }
  };
  visit_arrays(*slice.unit, slice.pass, place, view);
  TANDEM_CHECK_LE(used, options_.buffer_bytes,
                  "a transfer buffer has room for a slice of every unit");
  return touched;
}

/// Copies the arrays that the pass reads on the way in, and those that it has written on the way
/// out, and nothing else.
void DeviceUpdates::copy(const TransferBuffer& buffer, bool in) {
  for (const StagedArray& array : buffer.arrays) {
    if (!(in ? array.use.read : array.use.written)) {
      continue;
    }
    for (const UpdateRange& range : buffer.view.ranges) {
      const std::size_t begin = array.use.bytes_of(range.begin);
      const std::size_t bytes = array.use.bytes_of(range.end) - begin;
      if (in) {
        in_.to_device(array.buffer + begin, {array.home + begin, bytes});
        bytes_in_ += bytes;
      } else {
        out_.to_host({array.home + begin, bytes}, array.buffer + begin);
        bytes_out_ += bytes;
      }
    }
  }
}

Task<> DeviceUpdates::run(UpdateSlice slice) {
  TANDEM_CHECK(slice.direction == nullptr, "what is updated jointly stays on the host");
  const TransferRing<TransferBuffer>::Loan loan = buffers_.take();
  TransferBuffer* buffer = &*loan;
  const std::size_t bytes = prepare(*buffer, slice);
  const bool is_staged = !buffer->arrays.empty();
  if (is_staged) {
    in_.name_copies(slice.name);
    copy(*buffer, true);
    kernels_.wait(in_.record());
  }
  kernels_.launch(slice.name, {.bytes = static_cast<double>(bytes)},
                  [buffer, kernels = options_.kernels, pass = slice.pass, steps = slice.steps,
                   elements = slice.end - slice.begin](void* native_stream) {
                    if (kernels != nullptr) {
                      kernels->run_pass(pass, buffer->view, steps, 0, elements, native_stream);
                    } else {
                      run_update_pass(pass, buffer->view, steps, 0, elements);
                    }
                  });
  DeviceEvent done = kernels_.record();
  if (is_staged) {
    out_.wait(done);
    out_.name_copies(slice.name);
    copy(*buffer, false);
    done = out_.record();
  }
  co_await done.wait();
}

}  // namespace tandem
