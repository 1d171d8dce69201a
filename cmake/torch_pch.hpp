// cmake/torch_pch.hpp — precompiled header of every translation unit that uses LibTorch.
#pragma once
#include "algorithm_pch.hpp"
#include "runtime_pch.hpp"
#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <simdjson.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>
