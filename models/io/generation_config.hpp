// models/io/generation_config.hpp — reads and writes generation_config.json: the tokens at which a
// text ends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

namespace tandem {

/// Its eos_token_id; empty where the folder has no such file, or the file no such key. Throws
/// user_error for a file that is malformed.
std::vector<std::int64_t> generation_end_tokens(const std::filesystem::path& folder);

/// Copies the file of `from`, if there is one, into `to`. Where neither it nor the model's config
/// (`config_ends`) ends a text at `end_token`, which the model has learnt, that is added to the
/// file: generation would run past it.
void save_generation_config(const std::filesystem::path& from, const std::filesystem::path& to,
                            std::span<const std::int64_t> config_ends,
                            std::optional<std::int32_t> end_token);

}  // namespace tandem
