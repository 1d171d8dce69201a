#include "models/grown_vocabulary.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "actors/storage/content_hash.hpp"
#include "actors/storage/file.hpp"
#include "actors/storage/folder.hpp"
#include "actors/storage/json.hpp"
#include "models/causal_lm.hpp"
#include "models/families/family.hpp"
#include "models/io/tokenizer/tokenizer.hpp"
#include "runtime/system/user_cache.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/utf8.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kWhere = "new tokens";
constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostTokenizerBytes = std::uint64_t{1} << 30;
constexpr std::size_t kMostAddedTokens = 65536;
constexpr std::int64_t kMultiple = 64;
constexpr std::int64_t kPieceElements = 1 << 18;

/// tokenizer.json with the tokens, as tokenizers' add_tokens() writes them.
std::string grown_json(const std::string& json, const fs::path& file,
                       const std::vector<std::string>& tokens, std::int64_t first_id) {
  const JsonDocument document = JsonDocument::parse(
      json, {.where = std::string(kWhere), .file = file.string(), .advice = "correct the file"});
  std::set<std::string_view> there;
  std::string list;
  for (const auto& [text, id] : document.root().at("model").at("vocab").object()) {
    there.insert(text);
  }
  if (const auto added = document.root().find("added_tokens")) {
    for (const JsonValue& token : added->items()) {
      there.insert(token.at("content").string());
      list += fmt::format("{}{}", list.empty() ? "" : ", ", simdjson::minify(token.raw()));
    }
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (there.contains(tokens[i])) {
      throw user_error(kWhere, "\"{}\" is a token of {} already; leave it out", tokens[i],
                       file.string());
    }
    list += fmt::format(
        R"({}{{"id": {}, "content": {}, "single_word": false, "lstrip": false, "rstrip": false, )"
        R"("normalized": true, "special": false}})",
        list.empty() ? "" : ", ", first_id + static_cast<std::int64_t>(i), json_quote(tokens[i]));
  }
  return with_json_member(json, "added_tokens", fmt::format("[{}]", list));
}

/// The folder for tokenizers with new tokens, made where it was not there.
fs::path cache_of_tokenizers() {
  const fs::path cache = user_cache_folder();
  if (cache.empty()) {
    throw user_error(kWhere,
                     "the tokenizer with the new tokens has no place, since neither HOME "
                     "nor TANDEM_CACHE is set; set one of them");
  }
  const fs::path folder = cache / "tokenizers";
  try {
    make_writable_folder(folder, std::string(kWhere));
  } catch (const Error&) {
    throw user_error(
        kWhere,
        "the tokenizer with the new tokens cannot be kept in {}; set TANDEM_CACHE to a "
        "folder that you can write to",
        folder.string());
  }
  return folder;
}

/// The mean of a matrix's rows [0, rows).
std::vector<float> mean_row(const ParameterSource& base, const ParameterSpec& matrix,
                            std::int64_t rows) {
  const std::int64_t width = matrix.shape[1];
  const std::int64_t step = std::max<std::int64_t>(1, kPieceElements / width);
  std::vector<double> sums(static_cast<std::size_t>(width));
  std::vector<float> piece;
  for (std::int64_t begin = 0; begin < rows; begin += step) {
    const std::int64_t count = std::min(step, rows - begin);
    piece.resize(static_cast<std::size_t>(count * width));
    base(matrix, begin * width, (begin + count) * width, piece.data());
    for (std::size_t i = 0; i < piece.size(); ++i) {
      sums[i % sums.size()] += piece[i];
    }
  }
  std::vector<float> mean(sums.size());
  std::ranges::transform(sums, mean.begin(), [rows](double sum) {
    return static_cast<float>(sum / static_cast<double>(rows));
  });
  return mean;
}

/// One matrix of the vocabulary, as published.
struct Matrix {
  ParameterSpec spec;
  std::once_flag read;
  std::vector<float> mean;
};

}  // namespace

std::vector<std::string> read_new_tokens(const fs::path& file) {
  const std::string text = read_file(file, std::string(kWhere), kMostFileBytes);
  std::vector<std::string> tokens;
  std::set<std::string> known;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line(text_of_line(std::string_view(text).substr(at, end - at), at == 0));
    at = end + 1;
    if (line.empty()) {
      continue;
    }
    if (!simdjson::validate_utf8(line)) {
      throw user_error(kWhere, "{}: token {} is no UTF-8; correct it", file.string(),
                       tokens.size() + 1);
    }
    if (!known.insert(line).second) {
      throw user_error(kWhere, "{}: \"{}\" is there twice; leave one out", file.string(), line);
    }
    tokens.push_back(std::move(line));
  }
  if (tokens.empty() || tokens.size() > kMostAddedTokens) {
    throw user_error(kWhere, "{} has {} tokens; write 1 to {}, one in each line", file.string(),
                     tokens.size(), kMostAddedTokens);
  }
  return tokens;
}

fs::path tokenizer_with(const fs::path& folder, const std::vector<std::string>& tokens) {
  const fs::path file = folder / "tokenizer.json";
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) {
    throw user_error(kWhere,
                     "{} has no tokenizer.json, to which tokens are added; save the "
                     "tokenizer by Transformers once",
                     folder.string());
  }
  const std::string own = read_file(file, std::string(kWhere), kMostTokenizerBytes);
  const std::int64_t first_id = Tokenizer::load(folder).vocab_size();
  if (Tokenizer::parse(own, file.string()).vocab_size() != first_id) {
    throw user_error(kWhere,
                     "{} lacks tokens that tokenizer_config.json adds to it, and ids would not be "
                     "theirs; save the tokenizer by Transformers once",
                     file.string());
  }
  const std::string json = grown_json(own, file, tokens, first_id);
  ContentHasher hasher;
  hasher.add(std::as_bytes(std::span(json)));
  for (const char* name : {"tokenizer_config.json", "chat_template.jinja", "config.json"}) {
    if (fs::is_regular_file(folder / name, ignored)) {
      const std::string text = read_file(folder / name, std::string(kWhere), kMostTokenizerBytes);
      hasher.add(std::as_bytes(std::span(text)));
    }
  }
  const fs::path grown = cache_of_tokenizers() / hasher.result().text().substr(0, 16);
  if (fs::is_regular_file(grown / "tokenizer.json", ignored)) {
    return grown;
  }
  AtomicFolder made(grown, std::string(kWhere));
  copy_tokenizer_files(folder, made.temporary());
  if (fs::is_regular_file(folder / "config.json", ignored)) {
    write_file(made.temporary() / "config.json", kWhere,
               read_file(folder / "config.json", std::string(kWhere), kMostTokenizerBytes));
  }
  write_file(made.temporary() / "tokenizer.json", kWhere, json);
  made.commit();
  return grown;
}

std::int64_t GrownVocabulary::grown_rows() const {
  const std::int64_t needed = tokens + new_tokens;
  return needed <= rows ? rows : (needed + kMultiple - 1) / kMultiple * kMultiple;
}

void grow(HfConfig& config, const GrownVocabulary& vocabulary) {
  config.vocab_size = vocabulary.grown_rows();
  config.json = with_json_member(config.json, "vocab_size", fmt::format("{}", config.vocab_size));
}

ParameterSource with_new_rows(ParameterSource base, const HfConfig& published,
                              const GrownVocabulary& vocabulary) {
  const DecoderSpec spec = family_of(published).describe(published);
  auto matrices = std::make_shared<std::map<std::string, Matrix>>();
  for (const std::string& name : {spec.embedding, spec.output}) {
    if (!name.empty()) {
      (*matrices)[name].spec = {name, {published.vocab_size, published.hidden_size}};
    }
  }
  return [base = std::move(base), matrices, vocabulary](
             const ParameterSpec& parameter, std::int64_t begin, std::int64_t end, float* out) {
    const auto found = matrices->find(parameter.name);
    if (found == matrices->end()) {
      return base(parameter, begin, end, out);
    }
    Matrix& matrix = found->second;
    std::call_once(matrix.read,
                   [&] { matrix.mean = mean_row(base, matrix.spec, vocabulary.tokens); });
    const std::int64_t width = matrix.spec.shape[1];
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t row = at / width;
      const bool is_new =
          row >= vocabulary.rows ||
          (row >= vocabulary.tokens && row < vocabulary.tokens + vocabulary.new_tokens);
      if (is_new) {
        const std::int64_t row_end = std::min(end, (row + 1) * width);
        std::copy(matrix.mean.begin() + (at - row * width),
                  matrix.mean.begin() + (row_end - row * width), out + (at - begin));
        at = row_end;
        continue;
      }
      const std::int64_t last_row = row < vocabulary.tokens ? vocabulary.tokens : vocabulary.rows;
      const std::int64_t run_end = std::min(end, last_row * width);
      base(matrix.spec, at, run_end, out + (at - begin));
      at = run_end;
    }
  };
}

}  // namespace tandem
