// tests/support/fakes/fake_update_kernels.hpp — a GPU's passes of the optimizer on the CPU: all of
// them but the indices of threads (update_element-inl.hpp), at once or in the stream's time on the
// fake of CUDA's calls. Not beside hwy/highway.h in one source.
#pragma once

#include <chrono>
#include <vector>

#include "actors/gpu/update_kernels.hpp"
#include "actors/kernels/update/update_element-inl.hpp"
#include "runtime/util/check.hpp"
#include "tests/support/fakes/fake_cuda.hpp"

namespace tandem::test {

/// One after the other.
struct HostLaunch {
  struct Alone {
    static constexpr unsigned kMembers = 1;
    static unsigned first() { return 0; }
    static std::uint32_t greatest(std::uint32_t own) { return own; }
  };
  template <class Rule, class Moment, bool kSplit>
  void elements(const Rule& rule, const PassBuffers& pass, N_ONE_LANE::RoundingBits rounding_bits,
                std::size_t first, std::size_t count) {
    for (std::size_t i = first; i < first + count; ++i) {
      N_ONE_LANE::update_element<Rule, Moment, kSplit>(rule, pass, rounding_bits, first, i);
    }
  }
  template <class Rule, bool kSplit>
  void blocks(const Rule& rule, const PassBuffers& pass, N_ONE_LANE::RoundingBits rounding_bits,
              std::size_t first, std::size_t count) {
    for (std::size_t at = 0; at < count; at += kScaleGroup) {
      N_ONE_LANE::update_block<Rule, kSplit>(rule, pass, rounding_bits.from(at), first + at,
                                             count - at, Alone());
    }
  }
  void restore(const N_ONE_LANE::Restored& restored, std::size_t first, std::size_t count) {
    for (std::size_t i = first; i < first + count; ++i) {
      N_ONE_LANE::restore_element(restored, i);
    }
  }
};

inline void run_pass_on_threads(UpdatePass pass, const UpdatedUnit& unit, const UpdateStep* steps,
                                std::size_t begin, std::size_t end) {
  HostLaunch launch;
  N_ONE_LANE::carry_out_pass(pass, unit, steps, begin, end, launch);
}

/// Whether the device reaches every array that the pass touches.
inline bool is_reached(UpdatePass pass, UpdatedUnit unit) {
  bool all = true;
  const std::size_t elements = unit.elements();
  visit_arrays(unit, pass, [&]<class T>(T*& array, const ArrayUse& use) {
    all = all && (array == nullptr || !(use.read || use.written) ||
                  FakeCuda::of_test().is_reached(array, use.bytes_of(elements)));
  });
  return all;
}

/// In the time of the fake's streams.
inline const UpdateKernels& fake_update_kernels() {
  static constexpr UpdateKernels kFake{[](UpdatePass pass, const UpdatedUnit& unit,
                                          const UpdateStep* steps, std::size_t begin,
                                          std::size_t end, void* stream) {
    TANDEM_CHECK(is_reached(pass, unit), "a kernel reaches its operands");
    std::size_t groups = 0;
    for (const UpdateRange& range : unit.ranges) {
      groups = std::max(groups, range.group + 1);
    }
    const Uncounted uncounted;
    FakeCuda::of_test().launch(
        stream, {.ready = {},
                 .cost = std::chrono::microseconds(20),
                 .run = [pass, unit, own = std::vector<UpdateStep>(steps, steps + groups), begin,
                         end] { run_pass_on_threads(pass, unit, own.data(), begin, end); }});
  }};
  return kFake;
}

}  // namespace tandem::test
