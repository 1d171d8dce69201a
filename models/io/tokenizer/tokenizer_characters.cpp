// The parts of a Tokenizer that work on characters: normalization, and sentencepiece's
// vocabularies.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>

#include <utf8proc.h>

#include "models/io/tokenizer/byte_level.hpp"
#include "models/io/tokenizer/tokenizer_impl.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "tokenizer";
constexpr std::string_view kReplacementCharacter = "\uFFFD";

// U+11A7 joins with nothing before it, but utf8proc 2.8 lets it vanish behind a Hangul syllable (it
// counts the trailing consonants from there). At the beginning of a text it stands firm, so texts
// are cut before it.
constexpr std::string_view kHangulTBase = "\u11A7";

constexpr char32_t kFirstMark = 0x300;  // no character before it decomposes to a mark alone

/// Marks (accents and the like) of canonical class other than 0 that `c` decomposes to, or nothing
/// where it begins with something else.
std::span<const utf8proc_int32_t> marks_of(char32_t c, int options,
                                           std::array<utf8proc_int32_t, 32>& room) {
  int boundary = 0;
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), room.data(), room.size(),
                              static_cast<utf8proc_option_t>(options), &boundary);
  const bool is_mark = count > 0 && count <= static_cast<utf8proc_ssize_t>(room.size()) &&
                       utf8proc_get_property(room[0])->combining_class != 0;
  return is_mark ? std::span(room.data(), static_cast<std::size_t>(count))
                 : std::span<const utf8proc_int32_t>();
}

/// Long runs of marks decomposed and in canonical order. utf8proc orders them by swapping
/// neighbours, in time with the square of a run's length; a run that is in order takes none, and
/// its normal forms are the same.
std::string with_ordered_marks(std::string_view text, int options) {
  constexpr std::size_t kShort = 32;
  const int decompose = (options & ~UTF8PROC_COMPOSE) | UTF8PROC_DECOMPOSE;
  std::string out;
  struct Mark {
    int order;  // its canonical class
    std::size_t place;
    utf8proc_int32_t code_point;
    auto operator<=>(const Mark&) const = default;
  };
  std::vector<Mark> run;
  std::array<utf8proc_int32_t, 32> room{};
  std::size_t done = 0;   // of the text, by what is in `out`
  std::size_t begin = 0;  // of the run
  const auto finish = [&](std::size_t end) {
    if (run.size() > kShort) {
      std::ranges::sort(run);
      out.append(text.substr(done, begin - done));
      for (const Mark& mark : run) {
        append_utf8(out, static_cast<char32_t>(mark.code_point));
      }
      done = end;
    }
    run.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const char32_t c = next_code_point(text, at);
    if (c < kFirstMark) {
      finish(start);
      continue;
    }
    const auto marks = marks_of(c, decompose, room);
    if (marks.empty()) {
      finish(start);
    }
    begin = run.empty() ? start : begin;
    for (const utf8proc_int32_t mark : marks) {
      run.push_back({utf8proc_get_property(mark)->combining_class, run.size(), mark});
    }
  }
  finish(text.size());
  out.append(text.substr(done));
  return out;
}

void append_normalized(std::string& out, std::string_view part, UnicodeForm form) {
  int options = UTF8PROC_STABLE;
  const bool compose = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  options |= compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd) {
    options |= UTF8PROC_COMPAT;
  }
  const std::string text = with_ordered_marks(part, options);
  utf8proc_uint8_t* normal = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &normal,
                                             static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(normal, &std::free);
  if (size < 0) {
    throw user_error(kWhere, "a text of {} bytes cannot be normalized: {}; shorten it", text.size(),
                     utf8proc_errmsg(size));
  }
  out.append(reinterpret_cast<const char*>(normal), static_cast<std::size_t>(size));
}

std::string with_replaced(std::string_view text, const ReplaceStep& step, NormalRoom& room) {
  std::string out;
  while (true) {
    const std::size_t at = text.find(step.from);
    const std::string_view kept = text.substr(0, at);
    room.take(kept.size() + (at == std::string_view::npos ? 0 : step.to.size()));
    out.append(kept);
    if (at == std::string_view::npos) {
      return out;
    }
    out += step.to;
    text.remove_prefix(at + step.from.size());
  }
}

}  // namespace

void NormalRoom::take(std::size_t bytes) {
  if (bytes > left_) {
    throw user_error(kWhere,
                     "the normalizer makes more than {} bytes for each byte of a text; correct "
                     "tokenizer.json",
                     kPerByte);
  }
  left_ -= bytes;
}

std::string normalize(std::string_view text, UnicodeForm form) {
  std::string out;
  while (!text.empty()) {
    const std::size_t cut = std::min(text.find(kHangulTBase, 1), text.size());
    append_normalized(out, text.substr(0, cut), form);
    text.remove_prefix(cut);
  }
  return out;
}

std::string Tokenizer::Impl::normalized(std::string_view text, NormalRoom& room) const {
  std::string out(text);
  for (const NormalizerStep& step : normalizer) {
    if (const auto* form = std::get_if<UnicodeForm>(&step)) {
      out = normalize(out, *form);
      room.take(out.size());
    } else if (const auto* prepend = std::get_if<PrependStep>(&step)) {
      room.take(prepend->text.size() + out.size());
      out = out.empty() ? out : prepend->text + out;
    } else {
      out = with_replaced(out, std::get<ReplaceStep>(step), room);
    }
  }
  return out;
}

void Tokenizer::Impl::characters_of_word(std::string_view word,
                                         std::vector<std::int32_t>& symbols) const {
  bool after_unknown = false;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t begin = at;
    (void)next_code_point(word, at);
    const std::string_view character = word.substr(begin, at - begin);
    const auto found = id_of.find(character);
    bool unknown = found == id_of.end();
    if (!unknown) {
      symbols.push_back(found->second);
    } else if (byte_fallback && std::ranges::all_of(character, [&](char c) {
                 return byte_ids[static_cast<unsigned char>(c)] >= 0;
               })) {
      for (const char c : character) {
        symbols.push_back(byte_ids[static_cast<unsigned char>(c)]);
      }
      unknown = false;
    } else if (!unknown_id) {
      throw user_error(kWhere,
                       "{}: the vocabulary has no token for the character \"{}\" and no unk_token; "
                       "use a complete vocabulary",
                       file, character);
    } else if (!(after_unknown && fuse_unknown)) {
      symbols.push_back(*unknown_id);
    }
    after_unknown = unknown;
  }
}

void Tokenizer::Impl::apply(const MetaspaceStep& step, bool first, Scratch& scratch) const {
  scratch.spare_pieces.clear();
  for (const std::string_view piece : scratch.pieces) {
    NormalRoom room(piece.size());
    std::string marked = with_replaced(piece, {" ", step.mark}, room);
    const bool begins = first && piece.data() == scratch.pieces.front().data();
    const bool prepends = step.prepend == MetaspaceStep::Prepend::kAlways ||
                          (step.prepend == MetaspaceStep::Prepend::kFirst && begins);
    if (prepends && !marked.starts_with(step.mark)) {
      marked.insert(0, step.mark);
    }
    scratch.strings.push_back(std::move(marked));
    std::string_view left = scratch.strings.back();
    while (step.split && !left.empty()) {
      const std::size_t cut = std::min(left.find(step.mark, 1), left.size());
      scratch.spare_pieces.push_back(left.substr(0, cut));
      left.remove_prefix(cut);
    }
    if (!left.empty()) {
      scratch.spare_pieces.push_back(left);
    }
  }
  scratch.pieces.swap(scratch.spare_pieces);
}

std::string Tokenizer::Impl::decoded(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string out;
  std::string bytes;
  const auto finish_bytes = [&] {
    if (is_valid_utf8(bytes)) {
      out += bytes;
    } else {
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        out += kReplacementCharacter;
      }
    }
    bytes.clear();
  };
  for (const std::int32_t id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= tokens.size()) {
      continue;
    }
    const Token& token = tokens[static_cast<std::size_t>(id)];
    if (skip_special && token.special) {
      continue;
    }
    if (token.is_byte) {
      bytes += token.bytes;
    } else {
      finish_bytes();
      out += token.bytes;
    }
  }
  finish_bytes();
  return strips_first_space && out.starts_with(' ') ? out.substr(1) : out;
}

}  // namespace tandem
