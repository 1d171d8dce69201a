// models/io/tokenizer/tokenizer_impl.hpp — the members of a loaded tokenizer. Only tokenizer*.cpp
// include it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "models/io/tokenizer/added_tokens.hpp"
#include "models/io/tokenizer/bpe.hpp"
#include "models/io/tokenizer/pre_tokenizer.hpp"
#include "models/io/tokenizer/tokenizer.hpp"
#include "models/io/tokenizer/word_cache.hpp"

namespace tandem {

inline constexpr std::string_view kSpaceMark = "\u2581";  // a space, as sentencepiece writes it

enum class UnicodeForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };
/// Returns `text`, which must be valid UTF-8, in the Unicode form, by utf8proc. The time grows with
/// the text's length.
std::string normalize(std::string_view text, UnicodeForm form);

/// The bytes that a normalizer may still make of a text, or of a file's added tokens. Published
/// normalizers make up to eleven times the text's bytes; a file whose steps double the text again
/// and again is stopped.
class NormalRoom {
 public:
  explicit NormalRoom(std::size_t text_bytes) : left_(kFree + kPerByte * text_bytes) {}
  /// Takes `bytes` of them; throws user_error if fewer are left.
  void take(std::size_t bytes);

 private:
  static constexpr std::size_t kFree = std::size_t{1} << 24;
  static constexpr std::size_t kPerByte = 64;
  std::size_t left_;
};

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept {
    return std::hash<std::string_view>{}(text);
  }
};
template <class T>
using StringMap = std::unordered_map<std::string, T, StringHash, std::equal_to<>>;

/// The normalizer's steps: a Unicode form, a text put in front, one text replaced by another.
struct PrependStep {
  std::string text;
};
struct ReplaceStep {
  std::string from, to;
};
using NormalizerStep = std::variant<UnicodeForm, PrependStep, ReplaceStep>;

/// The pre-tokenizer's steps: cut; put a space before every piece that does not begin with one; or
/// write spaces as a mark, and put the mark in front of every piece, of the text's first piece, or
/// of none.
struct PrefixSpace {};
struct MetaspaceStep {
  enum class Prepend : std::uint8_t { kAlways, kFirst, kNever };
  std::string mark;
  Prepend prepend = Prepend::kAlways;
  bool split = true;  // before every mark
};
using PreTokenizerStep = std::variant<SplitStep, PrefixSpace, MetaspaceStep>;

struct Tokenizer::Impl {
  std::string file;  // for errors while encoding
  std::string note;  // on ids that Transformers makes in another way

  // Model. Tokens by id; gaps have known = false. A deque: growing leaves the strings where they
  // are.
  struct Token {
    std::string spelled;
    std::string bytes;
    bool known = false;
    bool special = false;
    bool is_byte = false;  // "<0x0A>", without ByteLevel
  };
  std::deque<Token> tokens;
  std::unordered_map<std::string_view, std::int32_t> id_of;  // keys point into tokens
  bool byte_level = true;  // the vocabulary spells bytes; else characters, as sentencepiece does
  bool byte_fallback = false;  // of characters: bytes ("<0x0A>") for those without a token
  std::array<std::int32_t, 256> byte_ids{};  // -1: no such token
  bool strips_first_space = false;           // of a decoded text
  MergeTable merges;
  // Whether no merge makes a token with a mark behind another character. Then a text may be cut
  // before its marks, and the cache finds its words again.
  bool cuts_at_marks = false;
  bool ignore_merges = false;
  StringMap<std::int32_t> id_of_bytes;  // only with ignore_merges
  std::optional<std::int32_t> unknown_id;
  bool fuse_unknown = false;

  std::vector<NormalizerStep> normalizer;
  bool keeps_ascii = true;  // the normalizer leaves ASCII as it is
  std::vector<PreTokenizerStep> steps;
  AddedTokenMatcher raw_tokens;         // looked for in the text as it is
  AddedTokenMatcher normalized_tokens;  // looked for after normalization
  std::vector<std::int32_t> prefix;
  std::vector<std::int32_t> suffix;

  std::optional<std::int32_t> pad_id;
  std::optional<std::int32_t> eos_id;
  std::optional<std::int32_t> bos_id;
  std::optional<std::int64_t> model_max_length;

  /// Working memory of one thread's encoding. It is taken from the list and put back.
  struct Scratch {
    Matcher matcher;
    BpeMerger merger;
    std::vector<AddedTokenMatcher::Part> parts;
    std::vector<AddedTokenMatcher::Part> inner_parts;
    std::vector<std::string_view> pieces;
    std::vector<std::string_view> spare_pieces;
    std::deque<std::string> strings;  // pieces that are no part of the text
    std::vector<std::int32_t> symbols;
    WordCache words;
  };
  std::mutex scratch_mutex;
  std::vector<std::unique_ptr<Scratch>> free_scratch;

  std::unique_ptr<Scratch> take_scratch();
  void give_back(std::unique_ptr<Scratch> scratch);

  /// Returns the normalized text; throws user_error if the steps make more bytes than `room` has.
  [[nodiscard]] std::string normalized(std::string_view text, NormalRoom& room) const;
  /// `first`: `text` begins the text that was given.
  void encode_text(std::string_view text, bool first, Scratch& scratch,
                   std::vector<std::int32_t>& ids) const;
  void encode_piece(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  void encode_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  void merge_word(std::string_view word, Scratch& scratch) const;
  void bytes_of_word(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void characters_of_word(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void apply(const MetaspaceStep& step, bool first, Scratch& scratch) const;
  /// Returns the text of tokens without ByteLevel. Each run of bytes that is no UTF-8 becomes a
  /// replacement character.
  [[nodiscard]] std::string decoded(std::span<const std::int32_t> ids, bool skip_special) const;
};

}  // namespace tandem
