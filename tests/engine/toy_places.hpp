// tests/engine/toy_places.hpp — placements of the toy model's five units that between them meet every case.
#pragma once

#include <vector>

#include "engine/state_place.hpp"

namespace tandem::toy {

inline constexpr StatePlace kHost = StatePlace::kHost;
inline constexpr StatePlace kDevice = StatePlace::kDevice;
inline constexpr StatePlace kStreamed = StatePlace::kStreamed;

inline const std::vector<StatePlace> kAllPlaces[] = {
    {kDevice, kDevice, kDevice, kDevice, kDevice},
    {kStreamed, kStreamed, kStreamed, kStreamed, kStreamed},
    {kDevice, kStreamed, kHost, kStreamed, kHost},
    {kHost, kDevice, kStreamed, kHost, kDevice},
};

}  // namespace tandem::toy
