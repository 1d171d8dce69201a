// actors/optimizer/placed_state.hpp — a unit's state wherever its arrays lie, and the same state
// for code that can access them.
//
// Each array has a place of its own; a shadow's array lies where the array lies for which it stands
// in. Kernels take an UpdatedUnit, whose plain pointers say that they can access it; a runner
// (update_runner.hpp) makes one from a PlacedState.
#pragma once

#include "actors/kernels/update/update_pass.hpp"
#include "actors/memory/placed.hpp"

namespace tandem {

using PlacedBuffers = UpdateBuffersAt<Placed>;
using PlacedShadow = UpdateShadowAt<Placed>;
using PlacedState = UpdatedUnitAt<Placed>;

namespace detail {

template <class To, class From, class Convert>
[[nodiscard]] To converted_buffers(const From& from, Convert convert) {
  return {.master = convert(from.master),
          .state = {convert(from.state[0]), convert(from.state[1])},
          .scale = {convert(from.scale[0]), convert(from.scale[1])},
          .gradient = convert(from.gradient),
          .gradient_type = from.gradient_type,
          .weight = convert(from.weight),
          .weight_type = from.weight_type,
          .layout = from.layout,
          .position = from.position};
}

template <class To, class From, class Convert>
[[nodiscard]] To converted_shadow(const From& from, Convert convert) {
  return {.master = convert(from.master),
          .state = {convert(from.state[0]), convert(from.state[1])},
          .scale = {convert(from.scale[0]), convert(from.scale[1])},
          .weight = convert(from.weight)};
}

}  // namespace detail

/// Returns these buffers, all of which lie in `place`.
[[nodiscard]] inline PlacedBuffers placed(Place place, const UpdateBuffers& buffers) {
  return detail::converted_buffers<PlacedBuffers>(
      buffers, [place]<class T>(T* array) { return Placed<T>(place, array); });
}
[[nodiscard]] inline PlacedShadow placed(Place place, const UpdateShadow& shadow) {
  return detail::converted_shadow<PlacedShadow>(
      shadow, [place]<class T>(T* array) { return Placed<T>(place, array); });
}
[[nodiscard]] inline PlacedState placed(Place place, const UpdatedUnit& unit) {
  return {placed(place, unit.buffers), placed(place, unit.shadow), unit.ranges};
}

/// Return buffers and shadow for code that accesses host memory. All arrays must lie there.
[[nodiscard]] inline UpdateBuffers on_host(const PlacedBuffers& buffers) {
  return detail::converted_buffers<UpdateBuffers>(
      buffers, []<class T>(Placed<T> array) { return array.host(); });
}
[[nodiscard]] inline UpdateShadow on_host(const PlacedShadow& shadow) {
  return detail::converted_shadow<UpdateShadow>(
      shadow, []<class T>(Placed<T> array) { return array.host(); });
}

}  // namespace tandem
