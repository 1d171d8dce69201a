// models/io/generation_config.hpp — reads and writes generation_config.json: the tokens at which a
// text ends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

namespace tandem {

/// Returns the file's eos_token_id; empty if the folder has no such file, or the file no such key.
/// Throws user_error if the file is malformed.
std::vector<std::int64_t> generation_end_tokens(const std::filesystem::path& folder);

/// Copies the file of `from`, if there is one, into `to`. `end_token` is the token with which the
/// model has learnt to end a text. If the file's end tokens (without such tokens, the model
/// config's `config_ends`) do not have it, it is added to the file: generation would run past it.
void save_generation_config(const std::filesystem::path& from, const std::filesystem::path& to,
                            std::span<const std::int64_t> config_ends,
                            std::optional<std::int32_t> end_token);

}  // namespace tandem
