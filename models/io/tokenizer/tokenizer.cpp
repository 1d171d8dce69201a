#include "models/io/tokenizer/tokenizer.hpp"

#include <algorithm>
#include <array>

#include "actors/storage/file.hpp"
#include "models/io/hf_config.hpp"
#include "models/io/tokenizer/byte_level.hpp"
#include "models/io/tokenizer/tokenizer_impl.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "tokenizer";
constexpr std::size_t kBytesOfToken = 4;  // about as many as in a text
constexpr std::uint64_t kMostTokenizerBytes = 1u << 30;
constexpr std::array<std::string_view, 8> kTokenizerFiles = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
    "merges.txt",     "added_tokens.json",     "tokenizer.model",         "chat_template.jinja"};

bool is_ascii(std::string_view text) noexcept {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

}  // namespace

std::unique_ptr<Tokenizer::Impl::Scratch> Tokenizer::Impl::take_scratch() {
  {
    const std::lock_guard lock(scratch_mutex);
    if (!free_scratch.empty()) {
      auto scratch = std::move(free_scratch.back());
      free_scratch.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void Tokenizer::Impl::give_back(std::unique_ptr<Scratch> scratch) {
  const std::lock_guard lock(scratch_mutex);
  free_scratch.push_back(std::move(scratch));
}

void Tokenizer::Impl::merge_word(std::string_view word, Scratch& scratch) const {
  scratch.symbols.clear();
  if (byte_level) {
    bytes_of_word(word, scratch.symbols);
  } else {
    characters_of_word(word, scratch.symbols);
  }
  scratch.merger.merge(merges, scratch.symbols);
}

void Tokenizer::Impl::bytes_of_word(std::string_view word,
                                    std::vector<std::int32_t>& symbols) const {
  bool after_unknown = false;
  for (const char c : word) {
    const std::int32_t id = byte_ids[static_cast<unsigned char>(c)];
    if (id >= 0) {
      symbols.push_back(id);
    } else if (!unknown_id) {
      throw user_error(kWhere,
                       "{}: the vocabulary has no token for the byte 0x{:02X} and no unk_token; "
                       "use a complete byte-level vocabulary",
                       file, static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else if (!(after_unknown && fuse_unknown)) {
      symbols.push_back(*unknown_id);
    }
    after_unknown = id < 0;
  }
}

void Tokenizer::Impl::encode_word(std::string_view word, Scratch& scratch,
                                  std::vector<std::int32_t>& ids) const {
  if (const auto known = scratch.words.find(word); !known.empty()) {
    ids.insert(ids.end(), known.begin(), known.end());
    return;
  }
  const auto whole = ignore_merges ? id_of_bytes.find(word) : id_of_bytes.end();
  if (whole != id_of_bytes.end()) {
    scratch.symbols.assign(1, whole->second);
  } else {
    merge_word(word, scratch);
  }
  ids.insert(ids.end(), scratch.symbols.begin(), scratch.symbols.end());
  scratch.words.put(word, scratch.symbols);
}

void Tokenizer::Impl::encode_piece(std::string_view piece, Scratch& scratch,
                                   std::vector<std::int32_t>& ids) const {
  if (!cuts_at_marks) {
    return encode_word(piece, scratch, ids);
  }
  for (std::size_t begin = 0; begin < piece.size();) {
    // Behind the marks that the word begins with, up to the next one.
    std::size_t at = begin;
    while (piece.substr(at).starts_with(kSpaceMark)) {
      at += kSpaceMark.size();
    }
    const std::size_t end = std::min(piece.find(kSpaceMark, at), piece.size());
    encode_word(piece.substr(begin, end - begin), scratch, ids);
    begin = end;
  }
}

void Tokenizer::Impl::encode_text(std::string_view text, bool first, Scratch& scratch,
                                  std::vector<std::int32_t>& ids) const {
  scratch.strings.clear();
  scratch.pieces.assign(1, text);
  for (const PreTokenizerStep& step : steps) {
    if (const auto* cut = std::get_if<SplitStep>(&step)) {
      split(*cut, scratch.matcher, scratch.pieces, scratch.spare_pieces);
      continue;
    }
    if (const auto* marks = std::get_if<MetaspaceStep>(&step)) {
      apply(*marks, first, scratch);
      continue;
    }
    for (std::string_view& piece : scratch.pieces) {
      if (!piece.starts_with(' ')) {
        scratch.strings.push_back(" " + std::string(piece));
        piece = scratch.strings.back();
      }
    }
  }
  for (const std::string_view piece : scratch.pieces) {
    encode_piece(piece, scratch, ids);
  }
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  if (!is_valid_utf8(text)) {
    throw user_error(kWhere, "a text of {} bytes is not UTF-8; convert it first", text.size());
  }
  std::unique_ptr<Impl::Scratch> scratch = impl_->take_scratch();
  scratch->matcher.start_text(text.size());
  NormalRoom room(text.size());
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / kBytesOfToken + impl_->prefix.size() + impl_->suffix.size() + 1);
  if (add_special_tokens) {
    ids.assign(impl_->prefix.begin(), impl_->prefix.end());
  }
  scratch->parts.clear();
  impl_->raw_tokens.split(text, scratch->parts);
  for (const AddedTokenMatcher::Part& part : scratch->parts) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    // ASCII is its own normal form.
    const bool plain = impl_->normalizer.empty() || (impl_->keeps_ascii && is_ascii(part.text));
    const bool at_start = part.text.data() == text.data();
    const std::string normal = plain ? std::string{} : impl_->normalized(part.text, room);
    scratch->inner_parts.clear();
    const std::string_view given = plain ? part.text : std::string_view(normal);
    impl_->normalized_tokens.split(given, scratch->inner_parts);
    for (const AddedTokenMatcher::Part& inner : scratch->inner_parts) {
      if (inner.id >= 0) {
        ids.push_back(inner.id);
      } else {
        const bool first = at_start && inner.text.data() == given.data();
        impl_->encode_text(inner.text, first, *scratch, ids);
      }
    }
  }
  if (add_special_tokens) {
    ids.insert(ids.end(), impl_->suffix.begin(), impl_->suffix.end());
  }
  impl_->give_back(std::move(scratch));
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  if (!impl_->byte_level) {
    return impl_->decoded(ids, skip_special_tokens);
  }
  std::string bytes;
  for (const std::int32_t id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= impl_->tokens.size()) {
      continue;
    }
    const Impl::Token& token = impl_->tokens[static_cast<std::size_t>(id)];
    if (!(skip_special_tokens && token.special)) {
      bytes += token.bytes;
    }
  }
  return with_replacement_characters(bytes);
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  const auto found = impl_->id_of.find(token);
  return found == impl_->id_of.end() ? std::nullopt : std::optional(found->second);
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

bool Tokenizer::is_byte(std::int32_t id) const noexcept {
  return id >= 0 && id < vocab_size() && impl_->tokens[static_cast<std::size_t>(id)].is_byte;
}

std::int64_t Tokenizer::vocab_size() const noexcept {
  return static_cast<std::int64_t>(impl_->tokens.size());
}
std::optional<std::int32_t> Tokenizer::pad_id() const noexcept { return impl_->pad_id; }
std::optional<std::int32_t> Tokenizer::eos_id() const noexcept { return impl_->eos_id; }
std::optional<std::int32_t> Tokenizer::bos_id() const noexcept { return impl_->bos_id; }
std::optional<std::int64_t> Tokenizer::model_max_length() const noexcept {
  return impl_->model_max_length;
}
std::span<const std::int32_t> Tokenizer::prefix() const noexcept { return impl_->prefix; }
std::span<const std::int32_t> Tokenizer::suffix() const noexcept { return impl_->suffix; }
const std::string& Tokenizer::note() const noexcept { return impl_->note; }

void check_tokenizer_fits(const Tokenizer& tokenizer, const HfConfig& config) {
  if (tokenizer.vocab_size() > config.vocab_size) {
    throw user_error(kWhere,
                     "the tokenizer has ids up to {}, the model only {} embeddings (vocab_size); "
                     "use the tokenizer that belongs to the model",
                     tokenizer.vocab_size() - 1, config.vocab_size);
  }
}

bool is_tokenizer_file(std::string_view name) {
  return std::ranges::find(kTokenizerFiles, name) != kTokenizerFiles.end();
}

std::int64_t tokenizer_bytes(const std::filesystem::path& folder) {
  std::int64_t sum = 0;
  for (const std::string_view name : kTokenizerFiles) {
    std::error_code missing;
    const std::uintmax_t bytes = std::filesystem::file_size(folder / name, missing);
    sum += missing ? 0 : static_cast<std::int64_t>(bytes);
  }
  return sum;
}

void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to) {
  for (const std::string_view name : kTokenizerFiles) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(from / name, ignored)) {
      write_file(to / name, kWhere, read_file(from / name, kWhere, kMostTokenizerBytes));
    }
  }
}

}  // namespace tandem
