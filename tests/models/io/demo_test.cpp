// The shipped demo: records, tokenizer and model shape belong together, and the library they
// imitate reads them alike.
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "actors/storage/json.hpp"
#include "models/causal_lm.hpp"
#include "models/checkpoint_layout.hpp"
#include "models/data/alpaca.hpp"
#include "models/io/tokenizer/tokenizer.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

const test::fs::path kDemo = test::fs::path(test::source_dir()) / "examples/demo";

TEST(IoDemo, FitsTogether) {
  const auto records = read_alpaca(kDemo / "instructions.json");
  const Tokenizer tokenizer = Tokenizer::load(kDemo);
  const HfConfig config = read_hf_config(kDemo);
  EXPECT_GE(records.size(), 300u);
  EXPECT_LE(records.size(), 600u);
  EXPECT_EQ(tokenizer.vocab_size(), config.vocab_size);
  EXPECT_EQ(config.eos_token_ids, std::vector<std::int64_t>{*tokenizer.eos_id()});
  EXPECT_GT(parameter_count(config), 3'000'000);
  EXPECT_LT(parameter_count(config), 6'000'000);
  std::set<std::string> seen;
  for (const AlpacaRecord& record : records) {
    const std::string text = alpaca_text(record);
    EXPECT_TRUE(seen.insert(alpaca_question(record)).second) << "asked twice: " << text;
    const auto ids = tokenizer.encode(text, true);
    EXPECT_LE(ids.size(), 48u) << text;
    EXPECT_EQ(ids.back(), *tokenizer.eos_id());
    EXPECT_EQ(tokenizer.decode(ids, true), text);
  }
}

TEST(IoDemo, TheTokenizersLibraryGivesTheSameIds) {
  const test::TempDir dir;
  TANDEM_NEEDS_PYTHON(dir.path(), "tokenizers");
  std::string output;
  ASSERT_TRUE(test::run_python(dir.path(), R"(
import json, sys
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1] + '/tokenizer.json')
texts = [r['instruction'] + '\n' + r['input'] + '\n' + r['output'] for r in json.load(open(sys.argv[1] + '/instructions.json'))]
texts += ['', ' ', 'Na\u00efve <|im_end|> caf\u00e9 \U0001f600', '\u4e2d\u6587 123 4,5\r\n\r\n\tx  y', "don't WE'LL", '<|im_start|>a']
json.dump([[t, tokenizer.encode(t).ids, tokenizer.encode(t, add_special_tokens=False).ids] for t in texts], open(sys.argv[2], 'w'))
)",
                               "'" + kDemo.string() + "' '" + (dir / "ids.json").string() + "'",
                               &output))
      << output;
  const Tokenizer tokenizer = Tokenizer::load(kDemo);
  const JsonDocument ids = JsonDocument::load(dir / "ids.json", {.where = "test"}, 1u << 26);
  for (const JsonValue& entry : ids.root().items()) {
    const auto parts = entry.items();
    for (const bool special : {true, false}) {
      std::vector<std::int32_t> expected;
      for (const JsonValue& id : parts[special ? 1 : 2].items()) {
        expected.push_back(static_cast<std::int32_t>(id.integer()));
      }
      EXPECT_EQ(tokenizer.encode(parts[0].string(), special), expected) << parts[0].string();
    }
  }
}

}  // namespace
}  // namespace tandem
