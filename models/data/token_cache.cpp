#include "models/data/token_cache.hpp"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <optional>
#include <span>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

#include "actors/storage/content_hash.hpp"
#include "actors/storage/folder.hpp"
#include "actors/storage/hash_file.hpp"
#include "models/data/token_file.hpp"
#include "models/data/token_file_writer.hpp"
#include "runtime/system/user_cache.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

// Counts up when other tokens follow from the same data and options.
constexpr int kVersion = 2;
constexpr std::string_view kFingerprint = "fingerprint";
constexpr std::chrono::seconds kSilence{5};  // then it is said for whom this process waits
constexpr std::chrono::seconds kPatience{600};

fs::path place_of(const fs::path& data, const fs::path& folder,
                  const std::map<std::string, std::string>& options) {
  std::string key = fmt::format("{}\n{}\n", kVersion, content_hash_of(data, "dataset"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path file = folder / name;
    key += fs::is_regular_file(file) ? content_hash_of(file, "dataset") + '\n' : "\n";
  }
  for (const auto& [name, value] : options) {
    key += fmt::format("{} {}\n", name, value);
  }
  ContentHasher hasher;
  hasher.add(std::as_bytes(std::span(key)));
  return token_cache_folder() /
         fmt::format("{}-{}.tokens", data.stem().string(), hasher.result().text().substr(0, 16));
}

/// Waits until no other process of this user makes tokens here, and not for ever. Error where the
/// folder or its lock cannot be had: another user can open neither.
FolderLock lock_of(const fs::path& folder) {
  if (user_cache_folder().empty()) {
    throw user_error("dataset", "no folder is known for tokens; set TANDEM_CACHE");
  }
  std::error_code error;
  fs::create_directories(folder, error);
  const std::string holder =
      fmt::format("{}, process {}", program_invocation_short_name, ::getpid());
  try {
    return {folder, "dataset", holder, kSilence};
  } catch (const Error& busy) {
    if (::access(folder.c_str(), W_OK) != 0) {
      throw;
    }
    fmt::print(stderr, "{} (waiting up to {} s)\n", one_line(busy.what()), kPatience.count());
    (void)std::fflush(stderr);
  }
  return {folder, "dataset", holder, kPatience};
}

std::optional<CachedTokens> open_cached(const fs::path& place, const Tokenizer& tokenizer) {
  std::error_code ignored;
  if (!fs::is_regular_file(place, ignored)) {
    return std::nullopt;
  }
  try {
    const auto file = std::make_shared<TokenFile>(place);
    file->verify();
    return CachedTokens{.tokens = file, .masks = file->summary(tokenizer.bos_id()), .file = place};
  } catch (const Error&) {  // it is made anew
    return std::nullopt;
  }
}

}  // namespace

fs::path token_cache_folder() { return user_cache_folder() / "tokens"; }

CachedTokens cached_tokens(const fs::path& data, const fs::path& folder, const Tokenizer& tokenizer,
                           const std::map<std::string, std::string>& options,
                           const std::function<std::shared_ptr<MemoryRecords>()>& make) {
  const fs::path place = place_of(data, folder, options);
  if (auto cached = open_cached(place, tokenizer)) {
    return *std::move(cached);
  }
  std::string lost;  // why they cannot be kept
  std::optional<FolderLock> lock;
  try {
    lock.emplace(lock_of(place.parent_path()));
  } catch (const Error& error) {
    lost = error.what();
  }
  if (auto cached = open_cached(place, tokenizer)) {  // made while this process waited
    return *std::move(cached);
  }
  const auto records = make();
  const MaskSummary masks = summarise(*records, tokenizer.bos_id());
  try {
    auto words = options;
    words[std::string(kFingerprint)] = records->fingerprint();
    words["source"] = data.string();
    words["tokenizer"] = tokenizer_fingerprint(folder);
    if (lost.empty() && place == place_of(data, folder, options)) {  // no file has changed since
      write_token_file(place, *records, masks, tokenizer.vocab_size(), std::move(words));
      if (auto cached = open_cached(place, tokenizer)) {
        return *std::move(cached);
      }
    }
  } catch (const Error& error) {  // no room, or not ours to write
    lost = error.what();
  }
  return {.tokens = records, .masks = masks, .lost = lost};
}

}  // namespace tandem
