// cmake/torch_test_pch.hpp — what the tests of engine/, models/ and examples/ include, parsed once.
#pragma once

#include "torch_pch.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
