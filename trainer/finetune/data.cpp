#include "trainer/finetune/data.hpp"

#include <utility>

#include <fmt/format.h>

#include "models/data/mask_check.hpp"
#include "models/data/open_records.hpp"
#include "models/data/subset_records.hpp"
#include "models/hub/hub_paths.hpp"
#include "runtime/util/one_line.hpp"

namespace tandem {

namespace {

std::string end_token_text(const FinetuneData& data, const Tokenizer& tokenizer) {
  return data.end_token ? tokenizer.decode({{*data.end_token}}) : "as the tokenizer has it";
}

}  // namespace

FinetuneData open_data(const FinetuneFlags& flags, const std::filesystem::path& folder,
                       const Tokenizer& tokenizer) {
  const PackingOptions packing = {
      .kind = *parse_enum<Packing>(flags.packing), .room = flags.max_length, .seed = flags.seed};
  const bool wraps = packing.kind == Packing::kWrapped;
  const bool chosen = flags.given("--append_eos") || flags.recipe == "deepspeed_example";
  std::vector<std::string> lines;
  const auto open = [&](const std::string& name, double percentage) {
    const std::filesystem::path file = resolve_dataset_file(name);
    if (file != name) {
      lines.push_back(fmt::format("note     {}", one_line(resolved_text(name, file))));
    }
    OpenedRecords opened = open_records(
        file, folder, tokenizer,
        {.max_length = wraps ? kUncutLength : flags.max_length,
         .percentage = percentage,
         .loss_on = parse_enum<LossOn>(flags.loss_on),
         .append_eos = chosen ? std::optional(flags.append_eos == "on") : std::nullopt});
    if (!opened.note.empty()) {
      lines.push_back(fmt::format("note     {}: {}", one_line(name), one_line(opened.note)));
    }
    check_masks(opened.masks, name, opened.loss_on, opened.has_prompts);
    return opened;
  };
  // Held-out records are packed only where they may be longer than a row.
  const auto dataset_of = [&](const std::shared_ptr<const TokenRecords>& tokens, bool packs) {
    return std::make_shared<TokenDataset>(tokens, padding_id(tokenizer),
                                          packs ? packing : PackingOptions());
  };
  OpenedRecords opened = open(flags.dataset_name, flags.dataset_percentage);
  FinetuneData data{.records = std::move(opened.instructions),
                    .tokens = opened.tokens,
                    .end_token = opened.end_token};
  data.lines = std::move(lines);
  lines.clear();
  data.lines.push_back(fmt::format("data     {}: {}; {}, end token {}", flags.dataset_name,
                                   opened.masks.text(), one_line(opened.how),
                                   one_line(end_token_text(data, tokenizer))));
  data.lines.push_back(
      fmt::format("record   {}", one_line(marked_text(*opened.tokens, 0, tokenizer))));
  if (flags.eval.split > 0) {
    const auto [learnt, held_out] = split_records(opened.tokens, flags.eval.split);
    data.tokens = learnt;
    data.evaluated = dataset_of(held_out, wraps);
    data.lines.push_back(
        fmt::format("held out {} of the records, by their hashes", held_out->size()));
  } else if (!flags.eval.dataset.empty()) {
    const OpenedRecords held_out = open(flags.eval.dataset, 100);
    data.evaluated = dataset_of(held_out.tokens, wraps);
    data.lines.insert(data.lines.end(), lines.begin(), lines.end());
    data.lines.push_back(fmt::format("held out {}: {}", flags.eval.dataset, held_out.masks.text()));
  }
  data.dataset = dataset_of(data.tokens, true);
  if (const std::optional<Packs>& packs = data.dataset->packs()) {
    data.lines.push_back(
        fmt::format("packing  {} records in {}", data.tokens->size(), packs->text()));
  }
  return data;
}

}  // namespace tandem
