// The tokenizers of the model families: small ones with each family's settings, trained by the
// `tokenizers` library, agree with it id for id.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "actors/storage/json.hpp"
#include "models/io/tokenizer/tokenizer.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

/// argv: folder, the demo's records, Alpaca's records (may be missing). Each family's settings as
/// its published tokenizer.json has them.
constexpr std::string_view kScript = R"PY(
import json, pathlib, sys
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
out, demo, alpaca = map(pathlib.Path, sys.argv[1:])
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SEED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
LOW, UP, TAIL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = "|".join([r"[^\r\n\p{L}\p{N}]?" + UP + "*" + LOW + "+" + TAIL, r"[^\r\n\p{L}\p{N}]?" + UP + "+" + LOW + "*" + TAIL,
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
prompts = [r["instruction"] + "\n" + r["input"] + "\n" + r["output"] for r in json.loads(demo.read_text())]
if alpaca.exists():
    prompts += [r["instruction"] + "\n\n### Input:\n" + r["input"] + "\n\n### Response:\n" + r["output"]
                for r in json.loads(alpaca.read_text())[:400]]
nasty = ["", " ", "  ", "   lead", "trail   ", "a  b   c    d", "\n", "\n\n\n", "\r\n", "a\r\nb\r\n\r\nc", "\t\tx\t", "x\n  \n y",
  "I'm you're he'll we've they'd it's can't", "I'M YOU'RE HE'LL WE'VE", "'\u017f 'K \u212a's '\u017fS", "it\u2019s", "0", "007",
  "1234567890", "3.14159 1,000,000 1e-5", "\uff12\uff10\uff12\uff14 \u0663\u0664\u0665 \u2167 \u00bd", "na\u00efve cafe\u0301",
  "HTTPServer camelCase ABCdef XMLHttp'S iPhone's", "\u4e2d\u6587\u5206\u8bcd\u3002", "\u65e5\u672c\u8a9e",
  "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
  "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627", "\u0928\u092e\u0938\u094d\u0924\u0947",
  "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467 family",
  "\U0001f1e9\U0001f1ea", "<|end|>", "a<|end|>b <|end|>  c", "<|end|><|end|> x", "<|en", "a/b//c/\n/d", "def f(x):\n    return x**2  # square\n",
  "https://example.com/p?q=1&r=%20#f", "C:\\Users\\x", "a" * 300, "ab" * 500, " " * 97 + "x", "\u200b\u200d\ufeff", "\x00\x01\x7f",
  "\xa0nbsp\xa0\u2003em\u3000", "\u180e\u0085x", "\ufb01 \u2460", "\u2026\u2014\u2013\u2018\u2019\u201c\u201d", "\u2581\u2581a \u2581b", "<0x0A>",
  "\u01c5 \u02b0 \u0300x\u0301", "e\u0301E\u0301", "!!!\n\n???/\r\n", "x\u2028y\u2029z"]
split = lambda p, how="isolated", invert=False: pre_tokenizers.Split(Regex(p), how, invert)
level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
marks = lambda s, split: pre_tokenizers.Metaspace("\u2581", prepend_scheme=s, split=split)
strip = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
families = {
    "llama3": dict(pre=pre_tokenizers.Sequence([split(CL100K), level]), whole=True),
    "phi4": dict(pre=pre_tokenizers.Sequence([split(CL100K, "removed", True), level])),
    "seed_oss": dict(pre=pre_tokenizers.Sequence([split(SEED), level]), norm=normalizers.NFC()),
    "gpt_oss": dict(pre=pre_tokenizers.Sequence([split(O200K), level]), whole=True),
    "phi3_mini": dict(norm=normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]), spm=True),
    "llama2": dict(pre=marks("first", False), spm=True),
    "always": dict(pre=marks("always", True), spm=True),
    "gemma3": dict(norm=normalizers.Replace(" ", "\u2581"), pre=pre_tokenizers.Split(" ", "merged_with_previous"), spm=True, strip=False),
    "joined": dict(pre=pre_tokenizers.Sequence([split(r"[\saeiou]", "merged_with_previous"), level])),
    "joined_inverted": dict(pre=pre_tokenizers.Sequence([split(r"\w+", "merged_with_previous", True), level])),
}
for name, f in families.items():
    spm = f.get("spm", False)
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True) if spm else models.BPE(ignore_merges=f.get("whole", False)))
    if "norm" in f: t.normalizer = f["norm"]
    if "pre" in f: t.pre_tokenizer = f["pre"]
    bytes_ = ["<unk>"] + [f"<0x{b:02X}>" for b in range(256)] if spm else []
    alphabet = [] if spm else pre_tokenizers.ByteLevel.alphabet()
    # Phi-3-mini cuts no words, so merges are learnt on single lines; characters beyond a few fall back to bytes.
    lines = [l for p in prompts[:120] for l in p.split("\n")] if spm else prompts + nasty
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=1100, special_tokens=bytes_, initial_alphabet=alphabet,
        max_token_length=12, show_progress=False, **({"limit_alphabet": 90} if spm else {})))
    if spm:  # byte tokens belong to the vocabulary alone
        d = json.loads(t.to_str()); d["added_tokens"] = []; t = Tokenizer.from_str(json.dumps(d))
        t.decoder = decoders.Sequence(strip if f.get("strip", True) else strip[:3])
    else:
        t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken("<s>", special=True), AddedToken("<|end|>", special=True, rstrip=name == "phi3_mini", normalized=False)])
    template = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", t.token_to_id("<s>"))])
    t.post_processor = template if spm else processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    (out / name).mkdir(parents=True)
    t.save(str(out / name / "tokenizer.json"))
    cases = []
    for text in prompts + nasty:
        ids = t.encode(text, add_special_tokens=False).ids
        cases.append({"text": text, "ids": ids, "special": t.encode(text).ids, "decoded": t.decode(ids, skip_special_tokens=False),
                      "odd": t.decode(ids[1::2], skip_special_tokens=True)})
    (out / name / "cases.json").write_text(json.dumps(cases))
    print(name, t.get_vocab_size(), len(cases))
)PY";

using Ids = std::vector<std::int32_t>;

Ids ids_at(const JsonValue& entry, std::string_view key) {
  Ids ids;
  for (const simdjson::dom::element id : entry.at(key).array()) {
    ids.push_back(static_cast<std::int32_t>(id.get_int64().value()));
  }
  return ids;
}

void expect_agreement(const test::fs::path& folder) {
  const Tokenizer tokenizer = Tokenizer::load(folder);
  const JsonDocument cases = JsonDocument::load(folder / "cases.json", {.where = "test"}, 1u << 28);
  std::size_t checked = 0;
  for (const JsonValue& entry : cases.root().items()) {
    const std::string_view text = entry.at("text").string();
    const Ids ids = ids_at(entry, "ids");
    ASSERT_EQ(tokenizer.encode(text), ids) << text;
    ASSERT_EQ(tokenizer.encode(text, true), ids_at(entry, "special")) << text;
    ASSERT_EQ(tokenizer.decode(ids), entry.at("decoded").string()) << text;
    Ids odd;
    for (std::size_t i = 1; i < ids.size(); i += 2) {
      odd.push_back(ids[i]);
    }
    ASSERT_EQ(tokenizer.decode(odd, true), entry.at("odd").string()) << text;
    ++checked;
  }
  EXPECT_GT(checked, 100U);
}

TEST(IoTokenizerFamilies, AgreeWithTheLibrary) {
  const test::TempDir dir;
  TANDEM_NEEDS_PYTHON(dir.path(), "tokenizers");
  const auto demo = test::fs::path(test::source_dir()) / "examples/demo/instructions.json";
  const auto alpaca = test::shared("data/alpaca/alpaca_small.json");
  std::string log;
  ASSERT_TRUE(test::run_python(
      dir.path(), kScript,
      "'" + (dir / "out").string() + "' '" + demo.string() + "' '" + alpaca.string() + "'", &log))
      << log;
  for (const char* family : {"llama3", "phi4", "seed_oss", "gpt_oss", "phi3_mini", "llama2",
                             "always", "gemma3", "joined", "joined_inverted"}) {
    SCOPED_TRACE(family);
    expect_agreement((dir / "out") / family);
  }
}

}  // namespace
}  // namespace tandem
