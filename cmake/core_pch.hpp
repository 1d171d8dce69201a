// cmake/core_pch.hpp — what most sources of the engine's core include, compiled once.
#pragma once
// std::ranges::stable_sort of libstdc++ 12 calls a function of its own that is deprecated, and a
// precompiled header is none of the system's.
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-declarations"
#include <algorithm>
#pragma clang diagnostic pop
#include "runtime_pch.hpp"
#include <fmt/ranges.h>
#include <simdjson.h>

#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
