#include "models/data/token_file_writer.hpp"

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "actors/storage/content_hash.hpp"
#include "actors/storage/file.hpp"
#include "actors/storage/safetensors_header.hpp"

namespace tandem {

namespace {

constexpr std::int64_t kMostShortIds = 1 << 16;
constexpr std::size_t kAlignment = 64;
constexpr std::uint8_t kWasCut = 1;  // of a record's flags
constexpr std::uint8_t kHasPrompt = 4;

/// The file's four tensors.
struct Content {
  std::vector<std::uint16_t> short_ids;
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::uint8_t> mask;  // a bit per token, the lowest of a byte first
  std::vector<std::uint8_t> flags;

  Content(const MemoryRecords& records, bool is_short) {
    std::vector<std::int32_t> of_record;
    std::vector<std::uint8_t> learnt;
    std::size_t token = 0;
    for (std::int64_t i = 0; i < records.size(); ++i) {
      records.read(i, of_record, learnt);
      if (is_short) {
        short_ids.insert(short_ids.end(), of_record.begin(), of_record.end());
      } else {
        ids.insert(ids.end(), of_record.begin(), of_record.end());
      }
      for (const std::uint8_t flag : learnt) {
        if (token % 8 == 0) {
          mask.push_back(0);
        }
        mask.back() = static_cast<std::uint8_t>(mask.back() | (flag != 0 ? 1U << (token % 8) : 0));
        ++token;
      }
      offsets.push_back(static_cast<std::int64_t>(token));
      flags.push_back(static_cast<std::uint8_t>(kHasPrompt | (records.was_cut(i) ? kWasCut : 0)));
    }
  }

  [[nodiscard]] std::vector<TensorPlan> plan() const {
    const auto extent = [](const auto& values) { return std::vector{std::ssize(values)}; };
    const TensorPlan of_ids = short_ids.empty()
                                  ? TensorPlan{"ids", TensorType::kI32, extent(ids)}
                                  : TensorPlan{"ids", TensorType::kU16, extent(short_ids)};
    return {of_ids,
            {"offsets", TensorType::kI64, extent(offsets)},
            {"mask", TensorType::kU8, extent(mask)},
            {"flags", TensorType::kU8, extent(flags)}};
  }
  [[nodiscard]] std::vector<std::span<const std::byte>> parts() const {
    return {std::as_bytes(std::span(short_ids)), std::as_bytes(std::span(ids)),
            std::as_bytes(std::span(offsets)), std::as_bytes(std::span(mask)),
            std::as_bytes(std::span(flags))};
  }
};

}  // namespace

void write_token_file(const std::filesystem::path& path, const MemoryRecords& records,
                      const MaskSummary& masks, std::int64_t vocab_size,
                      std::map<std::string, std::string> words) {
  const Content content(records, vocab_size <= kMostShortIds);
  ContentHasher hasher;
  for (const auto part : content.parts()) {
    hasher.add(part);
  }
  words["format"] = "tandem-tokens";
  words["version"] = "1";
  words["xxh3_128"] = hasher.result().text();
  for (const auto& [name, count] : {std::pair{"vocab_size", vocab_size},
                                    {"records", masks.records},
                                    {"cut", masks.cut},
                                    {"longest", masks.longest},
                                    {"tokens", masks.tokens},
                                    {"learnt", masks.learnt},
                                    {"whole", masks.whole},
                                    {"nothing", masks.nothing},
                                    {"double_start", masks.double_start},
                                    {"prompts", masks.records}}) {
    words[name] = std::to_string(count);
  }
  AtomicFile file(path, "dataset");
  file.append(safetensors_header(content.plan(), kAlignment, words));
  for (const auto part : content.parts()) {
    file.append(part);
  }
  file.commit();
}

}  // namespace tandem
