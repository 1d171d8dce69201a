// The steps of a tokenizer.json between text and merges, and back: normalizer, pre-tokenizer,
// decoder.
#include <algorithm>
#include <array>
#include <utility>

#include "models/io/tokenizer/byte_level.hpp"
#include "models/io/tokenizer/tokenizer_load.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::size_t kMostSteps = 64;

std::string_view type_of(const JsonValue& part) { return part.at("type").string(); }

bool has_byte_level(const JsonValue& part) {
  if (type_of(part) != "Sequence") {
    return type_of(part) == "ByteLevel";
  }
  for (const JsonValue& inner : part.at("pretokenizers").items()) {
    if (has_byte_level(inner)) {
      return true;
    }
  }
  return false;
}

std::string literal(const JsonValue& pattern) {
  const JsonValue text = pattern.at("String");
  if (text.string().empty()) {
    throw text.wrong("a text that is not empty");
  }
  return std::string(text.string());
}

}  // namespace

void TokenizerLoader::find_spelling(const JsonValue& root) {
  const auto pre_tokenizer = root.find("pre_tokenizer");
  impl_->byte_level = (pre_tokenizer && has_byte_level(*pre_tokenizer)) ||
                      !bool_or(root.at("model"), "byte_fallback", false);
}

std::string TokenizerLoader::bytes_of_characters(std::string_view spelled, bool& is_byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (spelled.size() == 6 && spelled.starts_with("<0x") && spelled.ends_with('>')) {
    const std::size_t high = kDigits.find(spelled[3]);
    const std::size_t low = kDigits.find(spelled[4]);
    if (high != std::string_view::npos && low != std::string_view::npos) {
      is_byte = true;
      return {static_cast<char>(high * 16 + low)};
    }
  }
  std::string out;
  while (true) {
    const std::size_t at = spelled.find(kSpaceMark);
    out.append(spelled.substr(0, at));
    if (at == std::string_view::npos) {
      return out;
    }
    out.push_back(' ');
    spelled.remove_prefix(at + kSpaceMark.size());
  }
}

void TokenizerLoader::read_normalizer(const JsonValue& part) {
  const std::string_view type = type_of(part);
  if (type == "Sequence") {
    for (const JsonValue& inner : part.at("normalizers").items()) {
      read_normalizer(inner);
    }
  } else if (type == "NFC") {
    impl_->normalizer.emplace_back(UnicodeForm::kNfc);
  } else if (type == "NFD") {
    impl_->normalizer.emplace_back(UnicodeForm::kNfd);
  } else if (type == "NFKC") {
    impl_->normalizer.emplace_back(UnicodeForm::kNfkc);
  } else if (type == "NFKD") {
    impl_->normalizer.emplace_back(UnicodeForm::kNfkd);
  } else if (type == "Prepend") {
    impl_->normalizer.emplace_back(PrependStep{std::string(part.at("prepend").string())});
    impl_->keeps_ascii = false;
  } else if (type == "Replace") {
    impl_->normalizer.emplace_back(
        ReplaceStep{literal(part.at("pattern")), std::string(part.at("content").string())});
    impl_->keeps_ascii = false;
  } else {
    throw part.at("type").wrong("one of NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence");
  }
  if (impl_->normalizer.size() > kMostSteps) {
    throw part.error(fmt::format("more than {} normalizers", kMostSteps));
  }
}

void TokenizerLoader::read_metaspace(const JsonValue& part) {
  MetaspaceStep step{.mark = std::string(part.at("replacement").string()),
                     .split = bool_or(part, "split", true)};
  std::size_t end = 0;
  if (!step.mark.empty()) {
    (void)next_code_point(step.mark, end);
  }
  if (step.mark.empty() || end != step.mark.size()) {
    throw part.at("replacement").wrong("one character");
  }
  if (const auto scheme = part.find("prepend_scheme")) {
    const std::string_view name = scheme->string();
    if (name != "always" && name != "first" && name != "never") {
      throw scheme->wrong("\"always\", \"first\" or \"never\"");
    }
    step.prepend = name == "always"  ? MetaspaceStep::Prepend::kAlways
                   : name == "first" ? MetaspaceStep::Prepend::kFirst
                                     : MetaspaceStep::Prepend::kNever;
  } else if (!bool_or(part, "add_prefix_space", true)) {
    step.prepend = MetaspaceStep::Prepend::kNever;
  }
  impl_->steps.emplace_back(std::move(step));
}

/// Marks to spaces, bytes together, one space off the beginning: what sentencepiece's conversions
/// say, in this order.
void TokenizerLoader::read_decoder(const JsonValue& root) {
  const auto decoder = root.find("decoder");
  if (impl_->byte_level) {
    if (!byte_level_seen_) {
      throw root.error(
          "pre_tokenizer has no ByteLevel step and the model no byte_fallback, only BPE that "
          "spells "
          "every byte is supported");
    }
    if (decoder && type_of(*decoder) != "ByteLevel") {
      throw decoder->at("type").wrong("\"ByteLevel\"");
    }
    return;
  }
  const JsonValue sequence = root.at("decoder");
  if (type_of(sequence) != "Sequence") {
    throw sequence.at("type").wrong("\"Sequence\" of Replace, ByteFallback, Fuse and Strip");
  }
  constexpr std::array<std::string_view, 4> kOrder = {"Replace", "ByteFallback", "Fuse", "Strip"};
  const auto steps = sequence.at("decoders").items();
  if (steps.size() < 3 || steps.size() > 4) {
    throw sequence.error("the decoders are not Replace, ByteFallback, Fuse and (if any) Strip");
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (type_of(steps[i]) != kOrder[i]) {
      throw steps[i].at("type").wrong(json_quote(kOrder[i]));
    }
  }
  if (literal(steps[0].at("pattern")) != kSpaceMark || steps[0].at("content").string() != " ") {
    throw steps[0].error("only the mark U+2581 is replaced by a space");
  }
  if (steps.size() == 4) {
    if (steps[3].at("content").string() != " " || steps[3].at("stop").integer() != 0) {
      throw steps[3].error("only a space at the beginning is stripped");
    }
    impl_->strips_first_space = steps[3].at("start").integer(0, 1) == 1;
  }
}

namespace {

// One character: Unicode's punctuation, and ASCII's signs, which it counts as symbols.
constexpr std::string_view kPunctuation = R"([\p{P}$+<=>^`|~])";

SplitStep::Keep kept(const JsonValue& behavior) {
  using Keep = SplitStep::Keep;
  constexpr std::array<std::pair<std::string_view, Keep>, 3> kKnown = {
      {{"Isolated", Keep::kIsolated},
       {"Removed", Keep::kRemoved},
       {"MergedWithPrevious", Keep::kWithPrevious}}};
  const auto* known =
      std::ranges::find(kKnown, behavior.string(), &std::pair<std::string_view, Keep>::first);
  if (known == kKnown.end()) {
    throw behavior.wrong("\"Isolated\", \"Removed\" or \"MergedWithPrevious\"");
  }
  return known->second;
}

}  // namespace

void TokenizerLoader::read_pre_tokenizer(const JsonValue& part) {
  const std::string_view type = type_of(part);
  if (type == "Sequence") {
    for (const JsonValue& inner : part.at("pretokenizers").items()) {
      read_pre_tokenizer(inner);
    }
  } else if (type == "Split") {
    read_split(part);
  } else if (type == "Digits") {
    const bool each = bool_or(part, "individual_digits", false);
    add_split(each ? "\\p{N}" : "\\p{N}+", SplitStep::Keep::kIsolated, false);
  } else if (type == "ByteLevel") {
    byte_level_at_ = impl_->steps.size();
    if (bool_or(part, "add_prefix_space", true)) {
      impl_->steps.emplace_back(PrefixSpace{});
    }
    if (bool_or(part, "use_regex", true)) {
      add_split(std::string(gpt2_pattern()), SplitStep::Keep::kIsolated, false);
    }
    byte_level_seen_ = true;
  } else if (type == "Punctuation") {
    const auto behavior = part.find("behavior");
    add_split(std::string(kPunctuation), behavior ? kept(*behavior) : SplitStep::Keep::kIsolated,
              false);
  } else if (type == "Metaspace" && !impl_->byte_level) {
    read_metaspace(part);
  } else {
    throw part.at("type").wrong(
        "one of ByteLevel, Split, Digits, Punctuation, Metaspace, Sequence");
  }
  if (impl_->steps.size() > kMostSteps) {
    throw part.error(fmt::format("more than {} steps", kMostSteps));
  }
}

void TokenizerLoader::read_split(const JsonValue& part) {
  if (byte_level_seen_) {
    throw part.error("a Split behind ByteLevel is not supported");
  }
  const JsonValue pattern = part.at("pattern");
  const auto regex = pattern.find("Regex");
  const std::string text =
      regex ? std::string(regex->string()) : escape_pattern(pattern.at("String").string());
  add_split(text, kept(part.at("behavior")), bool_or(part, "invert", false));
}

void TokenizerLoader::add_split(std::string pattern, SplitStep::Keep keep, bool invert) {
  impl_->steps.emplace_back(SplitStep{SplitPattern(std::move(pattern), impl_->file), keep, invert});
}

}  // namespace tandem
