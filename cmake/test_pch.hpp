// cmake/test_pch.hpp — what nearly every test of runtime/ and actors/ includes, compiled once.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <asio/io_context.hpp>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/actor.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
