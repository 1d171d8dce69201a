#include "examples/support/finetune/data.hpp"

#include <utility>

#include <fmt/format.h>

#include "models/data/mask_check.hpp"
#include "models/data/open_records.hpp"
#include "models/data/subset_records.hpp"
#include "models/hub_paths.hpp"
#include "runtime/util/one_line.hpp"

namespace tandem {

namespace {

std::string end_token_text(const FinetuneData& data, const Tokenizer& tokenizer) {
  return data.end_token ? tokenizer.decode({{*data.end_token}}) : "as the tokenizer has it";
}

}  // namespace

FinetuneData open_data(const FinetuneFlags& flags, const std::filesystem::path& folder,
                       const Tokenizer& tokenizer) {
  const bool chosen = flags.given("--append_eos") || flags.recipe == "deepspeed_example";
  const auto open = [&](const std::string& name, double percentage) {
    OpenedRecords opened = open_records(
        resolve_dataset_file(name), folder, tokenizer,
        {.max_length = flags.max_length,
         .percentage = percentage,
         .loss_on = parse_enum<LossOn>(flags.loss_on),
         .append_eos = chosen ? std::optional(flags.append_eos == "on") : std::nullopt});
    check_masks(opened.masks, name, opened.loss_on, opened.has_prompts);
    return opened;
  };
  const auto dataset_of = [&](const std::shared_ptr<const TokenRecords>& tokens) {
    return std::make_shared<TokenDataset>(tokens, padding_id(tokenizer));
  };
  OpenedRecords opened = open(flags.dataset_name, flags.dataset_percentage);
  FinetuneData data{.records = std::move(opened.instructions),
                    .tokens = opened.tokens,
                    .end_token = opened.end_token};
  data.lines.push_back(fmt::format("data     {}: {}; {}, end token {}", flags.dataset_name,
                                   opened.masks.text(), one_line(opened.how),
                                   one_line(end_token_text(data, tokenizer))));
  data.lines.push_back(
      fmt::format("record   {}", one_line(marked_text(*opened.tokens, 0, tokenizer))));
  if (flags.eval.split > 0) {
    const auto [learnt, held_out] = split_records(opened.tokens, flags.eval.split);
    data.tokens = learnt;
    data.evaluated = dataset_of(held_out);
    data.lines.push_back(
        fmt::format("held out {} of the records, by their hashes", data.evaluated->size()));
  } else if (!flags.eval.dataset.empty()) {
    const OpenedRecords held_out = open(flags.eval.dataset, 100);
    data.evaluated = dataset_of(held_out.tokens);
    data.lines.push_back(fmt::format("held out {}: {}", flags.eval.dataset, held_out.masks.text()));
  }
  data.dataset = dataset_of(data.tokens);
  return data;
}

}  // namespace tandem
