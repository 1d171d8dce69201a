// cmake/algorithm_pch.hpp — <algorithm> for a precompiled header: std::ranges::stable_sort of
// libstdc++ 12 calls a function of its own that is deprecated, and a precompiled header is none of
// the system's.
#pragma once
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-declarations"
#include <algorithm>
#pragma clang diagnostic pop
