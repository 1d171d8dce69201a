// models/data/token_file.hpp — reads a token file (docs/data.md) as token records. It is mapped, so
// it may be larger than memory, and only requested records are read.
//
// The file is not trusted. Opening checks its header and both ends of its offsets; everything about
// a record is checked when that record is read.
// Invariant: no number of the file is used before it was checked, and every id that read() returns
// lies in the vocabulary that the file names.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/storage/safetensors.hpp"
#include "models/data/mask_check.hpp"
#include "models/data/token_records.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

struct TokenFileOptions {
  std::int64_t max_length = std::int64_t{1} << 30;  // longer records are cut
  double percentage = 100;                          // of the records, from the first on
};

class TokenFile : public TokenRecords {
 public:
  /// Throws user_error if the file is no token file, or if its parts do not fit together. Reads the
  /// lengths of the kept records if any record is left out or cut here.
  explicit TokenFile(const std::filesystem::path& path, const TokenFileOptions& options = {});

  [[nodiscard]] std::int64_t size() const override { return records_; }
  [[nodiscard]] std::int64_t length(std::int64_t i) const override;
  [[nodiscard]] std::int64_t longest() const override { return longest_; }
  [[nodiscard]] std::int64_t cut_records() const override { return cut_records_; }
  /// Returns a hash of the content's hash in the header, the number of kept records and their
  /// greatest length; for a whole file of the token cache, the fingerprint in its header.
  [[nodiscard]] std::string fingerprint() const override;
  /// Throws user_error if the record does not agree with the header.
  void read(std::int64_t i, std::vector<std::int32_t>& ids,
            std::vector<std::uint8_t>& learnt) const override;

  /// Returns the counts of summarise(). If no record is left out, they come from the header, and
  /// only records that are cut here are read to correct them.
  [[nodiscard]] MaskSummary summary(std::optional<std::int32_t> start_token) const;
  /// Returns whether any record has a part that is no answer.
  [[nodiscard]] bool has_prompts() const { return count_of("prompts") > 0; }
  /// Returns the header's word of this name; empty if it has none.
  [[nodiscard]] std::string_view word(const std::string& name) const;

  /// Throws user_error unless the file was made with the tokenizer of this folder.
  void require_tokenizer(const std::filesystem::path& folder) const;
  /// Reads the whole file; throws user_error if its content is not what was written.
  void verify() const;

 private:
  struct Bounds {
    std::int64_t begin = 0;  // in tokens
    std::int64_t length = 0;
  };

  [[nodiscard]] std::int64_t count_of(const std::string& name) const;
  [[nodiscard]] const TensorInfo& tensor(std::string_view name, std::int64_t elements) const;
  void open_tensors();
  void cut(const TokenFileOptions& options);
  /// Returns the bounds of record i in the file, before any cut.
  [[nodiscard]] Bounds bounds(std::int64_t i) const;
  [[nodiscard]] std::int64_t offset(std::int64_t i) const;
  void read_first(std::int64_t i, const Bounds& bounds, std::vector<std::int32_t>& ids,
                  std::vector<std::uint8_t>& learnt) const;
  [[nodiscard]] Error damaged(const std::string& what) const;
  /// Gives the mapped pages back to the system's cache after every kReleaseEveryBytes, so that they
  /// do not count as memory of this process.
  void count_read(std::size_t bytes) const noexcept;

  SafetensorsFile file_;
  mutable std::atomic<std::uint64_t> read_bytes_ = 0;
  std::span<const std::byte> ids_;
  std::span<const std::byte> offsets_;
  std::span<const std::byte> mask_;   // a bit per token, the lowest of a byte first
  std::span<const std::byte> flags_;  // a byte per record
  std::size_t id_bytes_ = 0;
  std::int64_t vocab_size_ = 0;
  std::int64_t all_records_ = 0;  // of the file
  std::int64_t tokens_ = 0;       // of the file
  std::int64_t longest_in_file_ = 0;
  std::int64_t records_ = 0;
  std::int64_t longest_ = 0;
  std::int64_t cut_records_ = 0;
  std::vector<std::int64_t> long_records_;  // the records that are cut here
};

/// Returns the hash of the folder's tokenizer.json, by which tokenizers are told apart.
std::string tokenizer_fingerprint(const std::filesystem::path& folder);

}  // namespace tandem
