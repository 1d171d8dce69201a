// cmake/torch_test_pch.hpp — what the tests of engine/, models/ and examples/ include, parsed once.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "torch_pch.hpp"
