// cmake/torch_test_pch.hpp — what the tests of engine/, models/ and examples/ include, parsed once.
//
// Most of the time to compile one of them was parsing these anew. A change to one of them compiles
// all of these tests anew, as most of them did already.
#pragma once

#include "torch_pch.hpp"
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include "models/causal_lm.hpp"
#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/toy/training.hpp"
