// train_bpe — trains a byte-level BPE on instruction records and writes tokenizer.json and
// tokenizer_config.json.
//
// The usual algorithm: start with the 256 bytes, join the most frequent neighbours inside words
// again and again; among equals the pair with the lowest ids goes first, so the same records always
// give the same files.
#include <algorithm>
#include <array>
#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "actors/storage/file.hpp"
#include "models/data/alpaca.hpp"
#include "models/io/tokenizer/byte_level.hpp"
#include "models/io/tokenizer/pre_tokenizer.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/json_writer.hpp"
#include "trainer/program/program.hpp"

namespace tandem {
namespace {

constexpr std::string_view kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::array<std::string_view, 3> kSpecialTokens = {"<|endoftext|>", "<|im_start|>",
                                                            "<|im_end|>"};
constexpr std::string_view kPadToken = kSpecialTokens[0];
constexpr std::string_view kEndToken = kSpecialTokens[2];
constexpr std::int64_t kLeastCount = 2;  // a pair seen once teaches nothing

struct Word {
  std::vector<std::int32_t> symbols;
  std::int64_t count = 0;
};

struct Vocabulary {
  std::vector<std::string> tokens;  // raw bytes, by id
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;
};

std::vector<Word> count_words(const std::vector<AlpacaRecord>& records,
                              const std::vector<std::int32_t>& byte_ids) {
  const SplitStep step{SplitPattern(std::string(kPattern), "train_bpe")};
  Matcher matcher;
  std::map<std::string, std::int64_t> counts;
  std::vector<std::string_view> pieces;
  std::vector<std::string_view> scratch;
  for (const AlpacaRecord& record : records) {
    const std::string text = alpaca_text(record);
    pieces.assign(1, text);
    split(step, matcher, pieces, scratch);
    for (const std::string_view piece : pieces) {
      ++counts[std::string(piece)];
    }
  }
  std::vector<Word> words;
  for (const auto& [text, count] : counts) {
    Word word{.count = count};
    for (const char byte : text) {
      word.symbols.push_back(byte_ids[static_cast<unsigned char>(byte)]);
    }
    words.push_back(std::move(word));
  }
  return words;
}

/// The most frequent pair, and how often it occurs.
std::pair<std::pair<std::int32_t, std::int32_t>, std::int64_t> best_pair(
    const std::vector<Word>& words) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> counts;
  for (const Word& word : words) {
    for (std::size_t i = 0; i + 1 < word.symbols.size(); ++i) {
      counts[{word.symbols[i], word.symbols[i + 1]}] += word.count;
    }
  }
  std::pair<std::pair<std::int32_t, std::int32_t>, std::int64_t> best{{-1, -1}, 0};
  for (const auto& [pair, count] : counts) {  // ascending ids: the first of equals stays
    if (count > best.second) {
      best = {pair, count};
    }
  }
  return best;
}

void join(Word& word, std::pair<std::int32_t, std::int32_t> pair, std::int32_t joined) {
  std::vector<std::int32_t> out;
  for (std::size_t i = 0; i < word.symbols.size(); ++i) {
    const bool here = i + 1 < word.symbols.size() && word.symbols[i] == pair.first &&
                      word.symbols[i + 1] == pair.second;
    out.push_back(here ? joined : word.symbols[i]);
    i += here ? 1 : 0;
  }
  word.symbols = std::move(out);
}

Vocabulary train(const std::vector<AlpacaRecord>& records, std::size_t vocab_size) {
  Vocabulary vocabulary;
  // Ids of the bytes in the order of their spelling: '!' is 0, as in GPT-2.
  std::vector<std::pair<char32_t, int>> order;
  for (int byte = 0; byte < 256; ++byte) {
    order.emplace_back(byte_level_alphabet()[static_cast<std::size_t>(byte)], byte);
  }
  std::sort(order.begin(), order.end());
  std::vector<std::int32_t> byte_ids(256);
  for (const auto& [spelling, byte] : order) {
    byte_ids[static_cast<std::size_t>(byte)] = static_cast<std::int32_t>(vocabulary.tokens.size());
    vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  }
  std::vector<Word> words = count_words(records, byte_ids);
  while (vocabulary.tokens.size() + kSpecialTokens.size() < vocab_size) {
    const auto [pair, count] = best_pair(words);
    if (count < kLeastCount) {
      break;
    }
    const auto joined = static_cast<std::int32_t>(vocabulary.tokens.size());
    vocabulary.tokens.push_back(vocabulary.tokens[static_cast<std::size_t>(pair.first)] +
                                vocabulary.tokens[static_cast<std::size_t>(pair.second)]);
    vocabulary.merges.push_back(pair);
    for (Word& word : words) {
      join(word, pair, joined);
    }
  }
  return vocabulary;
}

void byte_level_part(JsonWriter& json, std::string_view key) {
  json.key(key).begin_object();
  json.field("type", "ByteLevel").field("add_prefix_space", false);
  json.field("trim_offsets", false).field("use_regex", false).end_object();
}

void added_tokens(JsonWriter& json, std::size_t first_id) {
  json.key("added_tokens").begin_array();
  for (std::size_t i = 0; i < kSpecialTokens.size(); ++i) {
    json.begin_object();
    json.field("id", first_id + i).field("content", kSpecialTokens[i]);
    json.field("single_word", false).field("lstrip", false).field("rstrip", false);
    json.field("normalized", false).field("special", true).end_object();
  }
  json.end_array();
}

void pre_tokenizer(JsonWriter& json) {
  json.key("normalizer").begin_object().field("type", "NFC").end_object();
  json.key("pre_tokenizer").begin_object().field("type", "Sequence");
  json.key("pretokenizers").begin_array();
  json.begin_object().field("type", "Split");
  json.key("pattern").begin_object().field("Regex", kPattern).end_object();
  json.field("behavior", "Isolated").field("invert", false).end_object();
  json.begin_object().field("type", "ByteLevel").field("add_prefix_space", false);
  json.field("trim_offsets", false).field("use_regex", false).end_object();
  json.end_array().end_object();
}

/// Every text ends with the end token, so that the model learns where to stop.
void post_processor(JsonWriter& json, std::size_t end_id) {
  const auto item = [&](std::string_view kind, std::string_view id, int type) {
    json.begin_object().key(kind).begin_object();
    json.field("id", id).field("type_id", type).end_object().end_object();
  };
  json.key("post_processor").begin_object().field("type", "TemplateProcessing");
  json.key("single").begin_array();
  item("Sequence", "A", 0);
  item("SpecialToken", kEndToken, 0);
  json.end_array().key("pair").begin_array();
  item("Sequence", "A", 0);
  item("Sequence", "B", 1);
  item("SpecialToken", kEndToken, 1);
  json.end_array().key("special_tokens").begin_object();
  json.key(kEndToken).begin_object().field("id", kEndToken);
  json.key("ids").begin_array().value(end_id).end_array();
  json.key("tokens").begin_array().value(kEndToken).end_array().end_object();
  json.end_object().end_object();
}

void model(JsonWriter& json, const Vocabulary& vocabulary) {
  json.key("model").begin_object().field("type", "BPE");
  json.key("dropout").value(nullptr).key("unk_token").value(nullptr);
  json.key("continuing_subword_prefix").value(nullptr).key("end_of_word_suffix").value(nullptr);
  json.field("fuse_unk", false).field("byte_fallback", false).field("ignore_merges", false);
  json.key("vocab").begin_object();
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    json.field(spell_byte_level(vocabulary.tokens[id]), id);
  }
  json.end_object().key("merges").begin_array();
  for (const auto& [left, right] : vocabulary.merges) {
    json.value(spell_byte_level(vocabulary.tokens[static_cast<std::size_t>(left)]) + " " +
               spell_byte_level(vocabulary.tokens[static_cast<std::size_t>(right)]));
  }
  json.end_array().end_object();
}

std::string tokenizer_json(const Vocabulary& vocabulary) {
  JsonWriter json(1);
  json.begin_object().field("version", "1.0");
  json.key("truncation").value(nullptr).key("padding").value(nullptr);
  added_tokens(json, vocabulary.tokens.size());
  pre_tokenizer(json);
  post_processor(json, vocabulary.tokens.size() + 2);
  byte_level_part(json, "decoder");
  model(json, vocabulary);
  json.end_object();
  return json.take() + "\n";
}

std::string config_json() {
  JsonWriter json(1);
  json.begin_object().field("tokenizer_class", "PreTrainedTokenizerFast");
  json.field("add_prefix_space", false).field("clean_up_tokenization_spaces", false);
  json.key("bos_token").value(nullptr).field("eos_token", kEndToken);
  json.field("pad_token", kPadToken).field("model_max_length", 512).end_object();
  return json.take() + "\n";
}

int run(int argc, char** argv) {
  CLI::App app("Trains a byte-level BPE on instruction records (.json or .jsonl)", "train_bpe");
  std::string data;
  std::string output;
  std::size_t vocab_size = 768;
  app.add_option("--data", data, "the records")->required();
  app.add_option("--output", output, "folder for tokenizer.json and tokenizer_config.json")
      ->required();
  app.add_option("--vocab_size", vocab_size, "at most this many tokens")
      ->capture_default_str()
      ->check(CLI::Range(300, 65536));
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  const Vocabulary vocabulary = train(read_alpaca(data), vocab_size);
  const std::filesystem::path folder(output);
  make_writable_folder(folder, "train_bpe");
  write_file(folder / "tokenizer.json", "train_bpe", tokenizer_json(vocabulary));
  write_file(folder / "tokenizer_config.json", "train_bpe", config_json());
  std::cout << vocabulary.tokens.size() + kSpecialTokens.size() << " tokens, "
            << vocabulary.merges.size() << " merges\n";
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  return tandem::guarded_main([&] { return tandem::run(argc, argv); });
}
