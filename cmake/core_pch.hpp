// cmake/core_pch.hpp — what most sources of the engine's core include, compiled once.
#pragma once
#include "algorithm_pch.hpp"
#include "runtime_pch.hpp"
#include <fmt/ranges.h>
#include <simdjson.h>

#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
