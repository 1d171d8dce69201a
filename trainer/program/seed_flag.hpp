// trainer/program/seed_flag.hpp — the flag --seed, the same in every program that has one.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace tandem {

/// Adds the flag. It takes 0 to 2^64 - 1; any other number is a user_error and is not clamped.
void add_seed(CLI::App& app, std::uint64_t& seed, const std::string& text);

}  // namespace tandem
