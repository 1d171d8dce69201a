// models/data/token_cache.hpp — tokens of large data, kept as a token file between runs: one
// process of a host makes it while the others wait, and every later start maps it.
//
// Invariant: a cached file's name has a hash of everything that decides its content, and the file
// is used only if its content has the hash in its header. If the cache cannot be used, a run goes
// on without it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "models/data/mask_check.hpp"
#include "models/data/memory_records.hpp"
#include "models/data/token_records.hpp"
#include "models/io/tokenizer/tokenizer.hpp"

namespace tandem {

struct CachedTokens {
  std::shared_ptr<const TokenRecords> tokens;
  MaskSummary masks;
  std::filesystem::path file;  // empty: the cache could not be used
  std::string lost;            // why it could not be used, in a line
};

/// $TANDEM_CACHE/tokens, by default ~/.cache/tandem/tokens.
std::filesystem::path token_cache_folder();

/// Returns the tokens of `data`: from the cache, or else from make(), whose errors are passed on.
/// `options`, the contents of `data` and the tokenizer in `folder` must decide the tokens.
CachedTokens cached_tokens(const std::filesystem::path& data, const std::filesystem::path& folder,
                           const Tokenizer& tokenizer,
                           const std::map<std::string, std::string>& options,
                           const std::function<std::shared_ptr<MemoryRecords>()>& make);

}  // namespace tandem
