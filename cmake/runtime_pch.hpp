// cmake/runtime_pch.hpp — what most sources of runtime/ and actors/ include, compiled once.
#pragma once
#include <algorithm>
#include <chrono>
#include <coroutine>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <asio/io_context.hpp>
#include <fmt/format.h>
