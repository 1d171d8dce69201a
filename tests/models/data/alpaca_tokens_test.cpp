// Instruction records become ids and masks: the DeepSpeed example's where all is learnt, and
// otherwise the answer with one end token behind it.
#include "models/data/alpaca_tokens.hpp"

#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "actors/storage/safetensors.hpp"
#include "models/data/token_dataset.hpp"
#include "runtime/util/error.hpp"
#include "tests/data/references.hpp"
#include "tests/models/io/tokenizer/tiny_tokenizer.hpp"

namespace tandem {
namespace {

using test::expect_error;

using Ids = std::vector<std::int32_t>;
using Mask = std::vector<std::uint8_t>;

constexpr std::int32_t kStart = 256;  // as in tiny_tokenizer.hpp
constexpr std::int32_t kEnd = 257;

struct TokenRecord {
  Ids ids;
  Mask learnt;
};

TokenRecord only_record(const AlpacaRecord& record, const Tokenizer& tokenizer,
                        const AlpacaTokenOptions& options) {
  const auto records = tokenise_alpaca({{record}}, tokenizer, options);
  TokenRecord made;
  records->read(0, made.ids, made.learnt);
  EXPECT_EQ(std::ssize(made.ids), records->length(0));
  return made;
}

/// A tokenizer that puts <s> before each text and </s> behind it.
Tokenizer framing_tokenizer() {
  return test::tiny_tokenizer(
      R"("post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
      {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [256]}, "</s>": {"id": "</s>", "ids": [257]}}})",
      R"({"pad_token": "<pad>", "eos_token": "</s>"})");
}

Tokenizer plain_tokenizer() { return test::tiny_tokenizer("", R"({"eos_token": "</s>"})"); }

/// A record's question, as many bytes and so tokens, then its answer.
const AlpacaRecord kRecord = {"do", "", "abc"};

TEST(AlpacaTokens, TheAnswerIsLearntWithOneEndToken) {
  const std::size_t question = alpaca_question(kRecord).size();
  const AlpacaTokenOptions options = {.end_token = kEnd};
  for (const bool frames : {false, true}) {
    SCOPED_TRACE(frames);
    const Tokenizer tokenizer = frames ? framing_tokenizer() : plain_tokenizer();
    const TokenRecord made = only_record(kRecord, tokenizer, options);
    const std::size_t before = question + (frames ? 1 : 0);
    EXPECT_EQ(made.ids.front() == kStart, frames);
    ASSERT_EQ(made.ids.size(), before + 4);
    EXPECT_EQ(Ids(made.ids.end() - 4, made.ids.end()), (Ids{'a', 'b', 'c', kEnd}));
    Mask expected(before, 0);
    expected.resize(before + 4, 1);
    EXPECT_EQ(made.learnt, expected);
  }
}

TEST(AlpacaTokens, AnEmptyAnswerIsItsEndToken) {
  const TokenRecord made = only_record({"do", "", ""}, plain_tokenizer(), {.end_token = kEnd});
  EXPECT_EQ(made.ids.back(), kEnd);
  EXPECT_EQ(std::ranges::count(made.learnt, 1), 1);
  EXPECT_EQ(made.learnt.back(), 1);
}

TEST(AlpacaTokens, WithoutEndTokenTextsEndAsTheTokenizerEndsThem) {
  const AlpacaTokenOptions options = {.loss_on = LossOn::kAll};
  const TokenRecord plain = only_record(kRecord, plain_tokenizer(), options);
  EXPECT_EQ(plain.ids.back(), 'c');
  EXPECT_EQ(plain.learnt, Mask(plain.ids.size(), 1));
  EXPECT_EQ(only_record(kRecord, framing_tokenizer(), options).ids.back(), kEnd);
}

TEST(AlpacaTokens, CutTextsHaveNoEndTokenUnlessTheTokenizerKeepsIt) {
  const auto length = static_cast<std::int64_t>(alpaca_question(kRecord).size()) + 2;
  const Tokenizer tokenizer = framing_tokenizer();
  const auto whole = tokenise_alpaca({{kRecord}}, tokenizer, {.max_length = length + 3});
  EXPECT_EQ(whole->cut_records(), 0);
  EXPECT_EQ(whole->longest(), length + 3);
  const auto cut =
      tokenise_alpaca({{kRecord}}, tokenizer, {.max_length = length, .end_token = kEnd});
  EXPECT_EQ(cut->cut_records(), 1);
  EXPECT_EQ(cut->longest(), length);
  Ids ids;
  Mask learnt;
  cut->read(0, ids, learnt);
  EXPECT_EQ(ids.back(), 'a');
  EXPECT_EQ(std::ranges::count(learnt, 1), 1);
  tokenise_alpaca({{kRecord}}, tokenizer, {.max_length = length})->read(0, ids, learnt);
  EXPECT_EQ(ids.back(), kEnd);
  tokenise_alpaca({{kRecord}}, tokenizer, {.max_length = 4, .end_token = kEnd})
      ->read(0, ids, learnt);
  EXPECT_EQ(learnt, Mask(4, 0));  // nothing of the answer is left
  for (const std::int64_t bad : {1, 0}) {
    expect_error([&] { (void)tokenise_alpaca({{kRecord}}, tokenizer, {.max_length = bad}); },
                 {"max_length is", "adds 2 tokens"});
  }
}

TEST(AlpacaTokens, ATokenAcrossTheBoundaryIsLearnt) {
  // A newline and an "x" merge into one token, 259; the question ends in a newline.
  const test::TempDir dir;
  test::TinyTokenizer tiny;
  tiny.vocabulary += R"(,"\u010ax":259)";
  tiny.merges = R"("\u010a x")";
  tiny.pre_tokenizer = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
  test::put(dir / "tokenizer.json", tiny.json());
  test::put(dir / "tokenizer_config.json", R"({"eos_token": "</s>"})");
  const Tokenizer tokenizer = Tokenizer::load(dir.path());
  const TokenRecord made = only_record({"do", "", "xy"}, tokenizer, {.end_token = kEnd});
  ASSERT_GE(made.ids.size(), 3u);
  EXPECT_EQ(Ids(made.ids.end() - 3, made.ids.end()), (Ids{259, 'y', kEnd}));
  EXPECT_EQ(std::ranges::count(made.learnt, 1), 3);
  EXPECT_EQ(Mask(made.learnt.end() - 3, made.learnt.end()), Mask(3, 1));
}

TEST(AlpacaTokens, ManyRecordsKeepTheirOrderAndTheFirstErrorIsTold) {
  const Tokenizer tokenizer = plain_tokenizer();
  std::vector<AlpacaRecord> records;
  records.reserve(1000);
  for (int i = 0; i < 1000; ++i) {
    records.push_back({"do", "", std::to_string(i)});
  }
  const auto all = tokenise_alpaca(records, tokenizer, {.end_token = kEnd});
  ASSERT_EQ(all->size(), 1000);
  Ids ids;
  Mask learnt;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const TokenRecord one = only_record(records[i], tokenizer, {.end_token = kEnd});
    all->read(static_cast<std::int64_t>(i), ids, learnt);
    ASSERT_EQ(ids, one.ids) << i;
    ASSERT_EQ(learnt, one.learnt) << i;
  }
  records[900].output = "\xFF";
  records[130].output = "a\xFF";
  std::string told;
  try {
    (void)only_record(records[130], tokenizer, {});
  } catch (const Error& error) {
    told = error.what();
  }
  expect_error([&] { (void)tokenise_alpaca(records, tokenizer, {}); }, {told});
  EXPECT_FALSE(told.empty());
}

/// `file` has rows of the first records, cut and padded to its width.
void expect_rows(const Tokenizer& tokenizer, std::vector<AlpacaRecord> records,
                 const std::filesystem::path& file) {
  const auto oracle = SafetensorsFile::open(file);
  const std::vector<std::int64_t> shape = oracle.at("input_ids").shape;
  ASSERT_GE(std::ssize(records), shape[0]);
  records.resize(static_cast<std::size_t>(shape[0]));
  const auto length = static_cast<std::size_t>(shape[1]);
  const TokenDataset dataset(
      tokenise_alpaca(records, tokenizer, {.max_length = shape[1], .loss_on = LossOn::kAll}),
      padding_id(tokenizer));
  const auto column = [&](std::string_view name) {
    const TensorInfo& info = oracle.at(name);
    EXPECT_EQ(info.shape, shape);
    std::vector<std::int64_t> values(static_cast<std::size_t>(info.numel()));
    std::memcpy(values.data(), oracle.bytes(info).data(), info.size_bytes);
    return values;
  };
  const auto ids = column("input_ids");
  const auto mask = column("attention_mask");
  const auto labels = column("labels_padding_ignored");
  for (std::size_t r = 0; r < records.size(); ++r) {
    const HostBatch row = dataset.collate({{static_cast<std::int64_t>(r)}});
    for (std::size_t t = 0; t < length; ++t) {
      const bool is_text = static_cast<std::int64_t>(t) < row.tokens;
      ASSERT_EQ(is_text ? 1 : 0, mask[r * length + t]) << r << " " << t;
      ASSERT_EQ(is_text ? row.labels[t] : kIgnoredLabel, labels[r * length + t]) << r << " " << t;
      if (is_text) {
        ASSERT_EQ(row.inputs[t], ids[r * length + t]) << r << " " << t;
      }
    }
  }
}

TEST(AlpacaTokens, MakesTheRowsOfTransformers) {
  const std::filesystem::path demo = test::source_path("examples/demo");
  expect_rows(Tokenizer::load(demo), read_alpaca(demo / "instructions.json"),
              test::own_reference("alpaca/rows.safetensors"));
}

TEST(AlpacaTokens, MakesTheRowsOfThePublishedTokenizer) {
  TANDEM_NEEDS_SHARED("oracles/finetune/alpaca.safetensors");
  const test::TempDir dir;
  if (!test::unpack_xz(test::shared("data/tokenizers/qwen3/tokenizer.json.xz"),
                       dir / "tokenizer.json")) {
    GTEST_SKIP() << "xz is not installed";
  }
  test::fs::copy_file(test::shared("data/tokenizers/qwen3/tokenizer_config.json"),
                      dir / "tokenizer_config.json");
  expect_rows(Tokenizer::load(dir.path()),
              read_alpaca(test::shared("data/alpaca/alpaca_small.json")),
              test::shared("oracles/finetune/alpaca.safetensors"));
}

}  // namespace
}  // namespace tandem
