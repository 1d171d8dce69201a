#include "models/data/token_cache.hpp"

#include <cerrno>
#include <span>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include "actors/storage/content_hash.hpp"
#include "actors/storage/file.hpp"
#include "actors/storage/hash_file.hpp"
#include "models/data/token_file.hpp"
#include "models/data/token_file_writer.hpp"
#include "runtime/system/user_cache.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

// Counts up when other tokens follow from the same data and options.
constexpr int kVersion = 2;
constexpr std::string_view kFingerprint = "fingerprint";

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

/// Waits until no other process makes tokens here. Error where the folder or its lock cannot be
/// had.
FileHandle lock_of(const fs::path& folder) {
  if (user_cache_folder().empty()) {
    throw user_error("dataset", "no folder is known for tokens; set TANDEM_CACHE");
  }
  std::error_code error;
  fs::create_directories(folder, error);
  FileHandle handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle.is_open() || ::flock(handle.get(), LOCK_EX) != 0) {
    throw user_error("dataset", "{}: {}", folder.string(), std::generic_category().message(errno));
  }
  return handle;
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
  FileHandle lock;
  try {
    lock = lock_of(place.parent_path());
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
