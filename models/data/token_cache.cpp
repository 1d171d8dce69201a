#include "models/data/token_cache.hpp"

#include <span>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include "actors/storage/content_hash.hpp"
#include "actors/storage/file.hpp"
#include "models/data/token_file.hpp"
#include "models/data/token_file_writer.hpp"
#include "runtime/system/user_cache.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

// Counts up when other tokens follow from the same data and options.
constexpr int kVersion = 1;
constexpr std::uint64_t kMostTokenizerBytes = std::uint64_t{1} << 30;
constexpr std::string_view kFingerprint = "fingerprint";

fs::path place_of(const fs::path& data, const fs::path& folder,
                  const std::map<std::string, std::string>& options) {
  std::string key =
      fmt::format("{}\n{}\n{}\n{}\n", kVersion, fs::canonical(data).string(), fs::file_size(data),
                  fs::last_write_time(data).time_since_epoch().count());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    if (fs::is_regular_file(folder / name)) {
      key += read_file(folder / name, "dataset", kMostTokenizerBytes);
    }
    key += '\n';
  }
  for (const auto& [name, value] : options) {
    key += fmt::format("{} {}\n", name, value);
  }
  ContentHasher hasher;
  hasher.add(std::as_bytes(std::span(key)));
  return token_cache_folder() /
         fmt::format("{}-{}.tokens", data.stem().string(), hasher.result().text().substr(0, 16));
}

/// Waits until no other process makes tokens here. Closed where the folder or its lock cannot be
/// had.
FileHandle lock_of(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  FileHandle handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return handle.is_open() && ::flock(handle.get(), LOCK_EX) == 0 ? std::move(handle) : FileHandle();
}

std::optional<CachedTokens> open_cached(const fs::path& place, const Tokenizer& tokenizer) {
  std::error_code ignored;
  if (!fs::is_regular_file(place, ignored)) {
    return std::nullopt;
  }
  try {
    const auto file = std::make_shared<TokenFile>(place);
    return CachedTokens{file, file->summary(tokenizer.bos_id()), place};
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
  const FileHandle lock = lock_of(place.parent_path());
  if (auto cached = open_cached(place, tokenizer)) {
    return *std::move(cached);
  }
  const auto records = make();
  const MaskSummary masks = summarise(*records, tokenizer.bos_id());
  if (lock.is_open()) {
    try {
      auto words = options;
      words[std::string(kFingerprint)] = records->fingerprint();
      words["source"] = data.string();
      words["tokenizer"] = tokenizer_fingerprint(folder);
      write_token_file(place, *records, masks, tokenizer.vocab_size(), std::move(words));
      if (auto cached = open_cached(place, tokenizer)) {
        return *std::move(cached);
      }
    } catch (const Error&) {  // no room, or not ours to write
    }
  }
  return {records, masks, {}};
}

}  // namespace tandem
