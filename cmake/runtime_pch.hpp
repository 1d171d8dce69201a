// cmake/runtime_pch.hpp — what most sources of runtime/ and actors/ include, compiled once.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <coroutine>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <fmt/format.h>
