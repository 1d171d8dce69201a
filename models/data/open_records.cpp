#include "models/data/open_records.hpp"

#include <fmt/ranges.h>

#include "models/data/alpaca_tokens.hpp"
#include "models/data/token_cache.hpp"
#include "models/data/token_file.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr std::string_view kWhere = "dataset";
// Tokens of less are made in a few tenths of a second.
constexpr std::uintmax_t kWorthCaching = std::uintmax_t{4} << 20;  // bytes

/// Refuses options that were decided when the token file was made: the tokens that are learnt, and
/// the ends of answers.
void require_prepared(const TokenFile& file, const std::string& name, std::string_view option,
                      std::optional<std::string_view> wanted) {
  const std::string_view made = file.word(std::string(option));
  if (wanted && *wanted != made) {
    throw user_error(kWhere, "{} was prepared with {} {}, not {}; prepare it again with --{} {}",
                     name, option, made, *wanted, option, *wanted);
  }
}

OpenedRecords open_token_file(const std::filesystem::path& path,
                              const std::filesystem::path& folder, const Tokenizer& tokenizer,
                              const RecordOptions& options) {
  const std::string name = path.string();
  const auto file = std::make_shared<TokenFile>(
      path, TokenFileOptions{.max_length = options.max_length, .percentage = options.percentage});
  file->require_tokenizer(folder);
  require_prepared(*file, name, "loss_on",
                   options.loss_on ? std::optional(name_of(*options.loss_on)) : std::nullopt);
  require_prepared(
      *file, name, "append_eos",
      options.append_eos ? std::optional(*options.append_eos ? "on" : "off") : std::nullopt);
  const std::string_view made = file->word("template");
  return {.tokens = file,
          .instructions = {},
          .masks = file->summary(tokenizer.bos_id()),
          .loss_on = parse_enum<LossOn>(file->word("loss_on")).value_or(LossOn::kCompletion),
          .has_prompts = file->has_prompts(),
          .end_token = tokenizer.id_of(file->word("end_token")),
          .how = fmt::format("prepared from {}{}{}, loss on {}", file->word("source"),
                             made.empty() ? "" : ", template ", made, file->word("loss_on"))};
}

std::string notes_of(const std::vector<AlpacaRecord>& records,
                     const std::vector<std::string>& unused) {
  std::vector<std::string> notes;
  if (!unused.empty()) {
    notes.push_back(fmt::format("members that are not used: {}", fmt::join(unused, ", ")));
  }
  if (const auto empty = std::ranges::count(records, "", &AlpacaRecord::output); empty > 0) {
    notes.push_back(
        fmt::format("records with an empty output, which teaches the model to end at "
                    "once: {} of {}",
                    empty, records.size()));
  }
  return fmt::format("{}", fmt::join(notes, "; "));
}

OpenedRecords tokenise(const std::filesystem::path& file, const std::filesystem::path& folder,
                       const Tokenizer& tokenizer, const RecordOptions& options) {
  OpenedRecords opened;
  opened.loss_on = options.loss_on.value_or(LossOn::kCompletion);
  if (options.append_eos.value_or(true)) {
    opened.end_token = tokenizer.eos_id();
    if (!opened.end_token) {
      throw user_error("tokenizer",
                       "tokenizer_config.json names no eos_token to end an answer with; add one, "
                       "or give --append_eos off");
    }
  }
  opened.how = fmt::format("template alpaca, loss on {}", name_of(opened.loss_on));
  const auto make = [&] {
    std::vector<std::string> unused;
    opened.instructions = read_alpaca(file, options.percentage, &unused);
    opened.note = notes_of(opened.instructions, unused);
    return tokenise_alpaca(opened.instructions, tokenizer,
                           {.max_length = options.max_length,
                            .loss_on = opened.loss_on,
                            .end_token = opened.end_token});
  };
  if (std::filesystem::file_size(file) < kWorthCaching) {
    opened.tokens = make();
    opened.masks = summarise(*opened.tokens, tokenizer.bos_id());
    return opened;
  }
  const CachedTokens cached = cached_tokens(
      file, folder, tokenizer,
      {{"template", "alpaca"},
       {"max_length", std::to_string(options.max_length)},
       {"percentage", fmt::format("{}", options.percentage)},
       {"loss_on", std::string(name_of(opened.loss_on))},
       {"append_eos", opened.end_token ? "on" : "off"},
       {"end_token", opened.end_token ? tokenizer.decode({{*opened.end_token}}) : ""}},
      make);
  opened.tokens = cached.tokens;
  opened.masks = cached.masks;
  if (!cached.file.empty()) {
    opened.how += fmt::format(", tokens kept in {}", cached.file.string());
  } else if (!cached.lost.empty()) {
    opened.how += fmt::format(", tokens not kept: {}", cached.lost);
  }
  return opened;
}

}  // namespace

OpenedRecords open_records(const std::filesystem::path& file, const std::filesystem::path& folder,
                           const Tokenizer& tokenizer, const RecordOptions& options) {
  return file.extension() == ".tokens" ? open_token_file(file, folder, tokenizer, options)
                                       : tokenise(file, folder, tokenizer, options);
}

}  // namespace tandem
