// cmake/actors_pch.hpp — what most sources of actors/ include, compiled once.
#pragma once
#include "runtime_pch.hpp"
#include <simdjson.h>

#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
