#include "models/data/token_file.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include <sys/mman.h>
#include <unistd.h>

#include "actors/storage/content_hash.hpp"
#include "actors/storage/file.hpp"
#include "actors/storage/mapped_file.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr std::string_view kWhere = "dataset";
constexpr std::string_view kFormat = "tandem-tokens";
constexpr std::string_view kVersion = "1";
constexpr std::int64_t kMostVocabulary = std::int64_t{1} << 31;    // ids are 32 bits
constexpr std::int64_t kMostTokensOfFile = std::int64_t{1} << 48;  // so that no sum overflows
constexpr std::uint64_t kMostTokenizerBytes = 512u << 20;
constexpr std::size_t kHashedBytes = std::size_t{1} << 22;  // at a time
constexpr std::uint64_t kReleaseEveryBytes = std::uint64_t{1} << 26;
constexpr auto kWasCut = std::byte{1};  // of a record's flags

template <class Id>
void widen(const std::byte* from, std::span<std::int32_t> to) {
  for (std::size_t t = 0; t < to.size(); ++t) {
    Id id = 0;
    std::memcpy(&id, from + t * sizeof(Id), sizeof(Id));
    to[t] = static_cast<std::int32_t>(id);
  }
}

/// The system may take the pages of a mapping; who reads them again gets them from its cache.
void release_pages(std::span<const std::byte> bytes) noexcept {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t lead = reinterpret_cast<std::uintptr_t>(bytes.data()) % page;
  ::madvise(const_cast<std::byte*>(bytes.data() - lead), bytes.size() + lead, MADV_DONTNEED);
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path, const TokenFileOptions& options)
    : file_(SafetensorsFile::open(path)) {
  if (word("format") != kFormat) {
    throw user_error(kWhere, "{} is no token file; ./tandem prepare makes one", path.string());
  }
  if (word("version") != kVersion) {
    throw user_error(kWhere,
                     "{} is a token file of version {}, this program reads {}; prepare it "
                     "again",
                     path.string(), word("version"), kVersion);
  }
  open_tensors();
  cut(options);
}

std::string_view TokenFile::word(const std::string& name) const {
  const auto found = file_.metadata().find(name);
  return found == file_.metadata().end() ? std::string_view() : std::string_view(found->second);
}

Error TokenFile::damaged(const std::string& what) const {
  return user_error(kWhere, "{}: {}; the file is damaged, prepare it again", file_.path().string(),
                    what);
}

std::int64_t TokenFile::count_of(const std::string& name) const {
  const std::string_view text = word(name);
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0 ||
      value > kMostTokensOfFile) {
    throw damaged(fmt::format("its header says {} = \"{}\", a number up to {} is needed", name,
                              text, kMostTokensOfFile));
  }
  return value;
}

const TensorInfo& TokenFile::tensor(std::string_view name, std::int64_t elements) const {
  const TensorInfo* found = file_.find(name);
  if (found == nullptr) {
    throw damaged(fmt::format("it has no {}", name));
  }
  if (found->shape.size() != 1 || found->shape[0] != elements) {
    throw damaged(fmt::format("its {} are {}, {} records of {} tokens in all need {}", name,
                              shape_text(found->shape), all_records_, tokens_, elements));
  }
  return *found;
}

void TokenFile::open_tensors() {
  all_records_ = count_of("records");
  tokens_ = count_of("tokens");
  longest_in_file_ = count_of("longest");
  vocab_size_ = count_of("vocab_size");
  if (all_records_ < 1 || tokens_ < all_records_ || vocab_size_ > kMostVocabulary ||
      longest_in_file_ > tokens_) {
    throw damaged(
        fmt::format("{} records, {} tokens, the longest record of {} and a vocabulary of "
                    "{} do not go together",
                    all_records_, tokens_, longest_in_file_, vocab_size_));
  }
  const TensorInfo& ids = tensor("ids", tokens_);
  const TensorInfo& offsets = tensor("offsets", all_records_ + 1);
  const TensorInfo& mask = tensor("mask", (tokens_ + 7) / 8);
  const TensorInfo& flags = tensor("flags", all_records_);
  if ((ids.type != TensorType::kU16 && ids.type != TensorType::kI32) ||
      offsets.type != TensorType::kI64 || mask.type != TensorType::kU8 ||
      flags.type != TensorType::kU8) {
    throw damaged(fmt::format(
        "its ids are {}, its offsets {}, its mask {}, its flags {}; U16 or "
        "I32, I64, U8 and U8 are needed",
        name_of(ids.type), name_of(offsets.type), name_of(mask.type), name_of(flags.type)));
  }
  id_bytes_ = bytes_of(ids.type);
  ids_ = file_.bytes(ids);
  offsets_ = file_.bytes(offsets);
  mask_ = file_.bytes(mask);
  flags_ = file_.bytes(flags);
  if (offset(0) != 0 || offset(all_records_) != tokens_) {
    throw damaged(fmt::format("its offsets lead from {} to {}, its {} tokens from 0 to {}",
                              offset(0), offset(all_records_), tokens_, tokens_));
  }
}

void TokenFile::cut(const TokenFileOptions& options) {
  if (!(options.percentage > 0 && options.percentage <= 100)) {
    throw user_error(kWhere, "dataset_percentage is {}; give a number above 0 and up to 100",
                     options.percentage);
  }
  if (options.max_length < 1) {
    throw user_error(kWhere, "max_length is {}; give at least 1", options.max_length);
  }
  records_ = std::min(all_records_, static_cast<std::int64_t>(static_cast<double>(all_records_) *
                                                              options.percentage / 100.0));
  if (records_ == 0) {
    throw user_error(kWhere, "{} has {} records, {} % of them is none; give at least one record",
                     file_.path().string(), all_records_, options.percentage);
  }
  longest_ = std::min(longest_in_file_, options.max_length);
  cut_records_ = count_of("cut");
  if (records_ == all_records_ && longest_ == longest_in_file_) {
    return;
  }
  cut_records_ = 0;
  longest_ = 0;
  for (std::int64_t i = 0; i < records_; ++i) {
    const std::int64_t whole = bounds(i).length;
    std::byte flags{};
    if (!MappedFile::survives([&] { flags = flags_[static_cast<std::size_t>(i)]; })) {
      throw damaged(fmt::format("record {} cannot be read", i + 1));
    }
    longest_ = std::max(longest_, std::min(whole, options.max_length));
    if (whole > options.max_length) {
      long_records_.push_back(i);
    }
    cut_records_ += whole > options.max_length || (flags & kWasCut) != std::byte{} ? 1 : 0;
  }
}

std::int64_t TokenFile::offset(std::int64_t i) const {
  const auto from = offsets_.subspan(static_cast<std::size_t>(i) * sizeof(std::int64_t));
  std::int64_t value = 0;
  if (!MappedFile::survives([&] { std::memcpy(&value, from.data(), sizeof(value)); })) {
    throw damaged(fmt::format("the offset of record {} cannot be read", i + 1));
  }
  count_read(sizeof(value));
  return value;
}

TokenFile::Bounds TokenFile::bounds(std::int64_t i) const {
  TANDEM_CHECK(0 <= i && i < all_records_, "a record of this file");
  const std::int64_t begin = offset(i);
  const std::int64_t end = offset(i + 1);
  // In this order, so that the difference of two strange numbers is not taken.
  if (begin < 0 || end > tokens_ || begin >= end || end - begin > longest_in_file_) {
    throw damaged(fmt::format("record {} would be tokens {} to {} of {}, and at most {} long",
                              i + 1, begin, end, tokens_, longest_in_file_));
  }
  return {.begin = begin, .length = end - begin};
}

std::int64_t TokenFile::length(std::int64_t i) const {
  return std::min(bounds(i).length, longest_);
}

void TokenFile::read(std::int64_t i, std::vector<std::int32_t>& ids,
                     std::vector<std::uint8_t>& learnt) const {
  Bounds kept = bounds(i);
  kept.length = std::min(kept.length, longest_);
  read_first(i, kept, ids, learnt);
}

void TokenFile::read_first(std::int64_t i, const Bounds& bounds, std::vector<std::int32_t>& ids,
                           std::vector<std::uint8_t>& learnt) const {
  const auto begin = static_cast<std::size_t>(bounds.begin);
  const auto count = static_cast<std::size_t>(bounds.length);
  ids.resize(count);
  learnt.resize(count);
  const bool was_read = MappedFile::survives([&] {
    const std::byte* from = ids_.data() + begin * id_bytes_;
    if (id_bytes_ == sizeof(std::uint16_t)) {
      widen<std::uint16_t>(from, ids);
    } else {
      widen<std::int32_t>(from, ids);
    }
    for (std::size_t t = 0; t < count; ++t) {
      const auto bits = std::to_integer<unsigned>(mask_[(begin + t) / 8]);
      learnt[t] = static_cast<std::uint8_t>((bits >> ((begin + t) % 8)) & 1U);
    }
  });
  if (!was_read) {
    throw damaged(fmt::format("record {} cannot be read", i + 1));
  }
  count_read(count * id_bytes_);
  const auto [low, high] = std::ranges::minmax(ids);
  if (low < 0 || high >= vocab_size_) {
    throw damaged(fmt::format("record {} has ids from {} to {}, the vocabulary {}", i + 1, low,
                              high, vocab_size_));
  }
}

void TokenFile::count_read(std::size_t bytes) const noexcept {
  const std::uint64_t before = read_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  if (before / kReleaseEveryBytes != (before + bytes) / kReleaseEveryBytes) {
    for (const auto part : {ids_, offsets_, mask_, flags_}) {
      release_pages(part);
    }
  }
}

MaskSummary TokenFile::summary(std::optional<std::int32_t> start_token) const {
  if (records_ < all_records_) {
    return summarise(*this, start_token);
  }
  MaskSummary all = {.records = records_,
                     .cut = cut_records_,
                     .longest = longest_,
                     .tokens = tokens_,
                     .learnt = count_of("learnt"),
                     .whole = count_of("whole"),
                     .nothing = count_of("nothing"),
                     .double_start = count_of("double_start")};
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learnt;
  for (const std::int64_t i : long_records_) {
    read_first(i, bounds(i), ids, learnt);
    const auto labels_of = [&](std::size_t length) {
      return std::count(learnt.begin() + 1, learnt.begin() + static_cast<std::ptrdiff_t>(length),
                        std::uint8_t{1});
    };
    const auto kept = static_cast<std::size_t>(longest_);
    const std::int64_t before = labels_of(ids.size());
    const std::int64_t after = labels_of(kept);
    all.tokens -= std::ssize(ids) - longest_;
    all.learnt -= before - after;
    all.whole += (after > 0 && after == longest_ - 1 ? 1 : 0) -
                 (before > 0 && before == std::ssize(ids) - 1 ? 1 : 0);
    all.nothing += (after == 0 ? 1 : 0) - (before == 0 ? 1 : 0);
  }
  return all;
}

std::string TokenFile::fingerprint() const {
  // The fingerprint of records that it keeps for the next run (token_cache.hpp): a run may go on
  // without it.
  if (const std::string_view of_records = word("fingerprint");
      !of_records.empty() && records_ == all_records_ && longest_ == longest_in_file_) {
    return std::string(of_records);
  }
  ContentHasher hasher;
  hasher.add(std::as_bytes(std::span(word("xxh3_128"))));
  const std::array kept = {records_, longest_};
  hasher.add(std::as_bytes(std::span(kept)));
  return hasher.result().text();
}

void TokenFile::require_tokenizer(const std::filesystem::path& folder) const {
  const std::string here = tokenizer_fingerprint(folder);
  if (word("tokenizer") != here) {
    throw user_error(kWhere,
                     "{} was made with another tokenizer ({}) than that of {} ({}); prepare it "
                     "with --model_name {}",
                     file_.path().string(), word("tokenizer"), folder.string(), here,
                     folder.string());
  }
}

void TokenFile::verify() const {
  ContentHasher hasher;
  std::vector<std::byte> piece;
  for (const TensorInfo& tensor : file_.tensors()) {
    const std::span<const std::byte> bytes = file_.bytes(tensor);
    for (std::size_t begin = 0; begin < bytes.size(); begin += piece.size()) {
      const auto from = bytes.subspan(begin, std::min(kHashedBytes, bytes.size() - begin));
      piece.resize(from.size());
      if (!MappedFile::survives([&] { std::memcpy(piece.data(), from.data(), from.size()); })) {
        throw damaged(fmt::format("its {} cannot be read", tensor.name));
      }
      hasher.add(piece);
      count_read(piece.size());
    }
  }
  if (hasher.result().text() != word("xxh3_128")) {
    throw damaged(fmt::format("its content has the hash {}, its header says {}",
                              hasher.result().text(), word("xxh3_128")));
  }
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learnt;
  for (std::int64_t i = 0; i < records_; ++i) {
    read(i, ids, learnt);
  }
}

std::string tokenizer_fingerprint(const std::filesystem::path& folder) {
  const std::string text = read_file(folder / "tokenizer.json", kWhere, kMostTokenizerBytes);
  ContentHasher hasher;
  hasher.add(std::as_bytes(std::span(text)));
  return hasher.result().text();
}

}  // namespace tandem
