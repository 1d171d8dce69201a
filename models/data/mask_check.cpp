#include "models/data/mask_check.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "runtime/util/error.hpp"
#include "runtime/util/utf8.hpp"

namespace tandem {

namespace {

constexpr std::string_view kWhere = "dataset";
constexpr double kMostWithNothing = 0.05;  // of the records

// The characters of a part of marked_text() that are shown.
constexpr std::size_t kShownAtBegin = 80;
constexpr std::size_t kShownAtEnd = 60;

double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

double percent(std::int64_t part, std::int64_t whole) { return 100 * share(part, whole); }

bool begins_twice(std::span<const std::int32_t> ids, std::optional<std::int32_t> start) {
  // Where start and end are one token, an empty text is both and no more.
  return start && ids.size() > 2 && ids[0] == *start && ids[1] == *start;
}

/// Its first and last characters.
std::string shortened(const std::string& text) {
  std::vector<std::size_t> begins;  // of characters
  for (std::size_t at = 0; at < text.size();
       at += std::max<std::size_t>(1, utf8_length(text, at))) {
    begins.push_back(at);
  }
  if (begins.size() <= kShownAtBegin + kShownAtEnd + 1) {
    return text;
  }
  return text.substr(0, begins[kShownAtBegin]) + "…" +
         text.substr(begins[begins.size() - kShownAtEnd]);
}

}  // namespace

std::string MaskSummary::text() const {
  std::string kept;
  if (cut > 0) {
    kept = fmt::format(" ({} cut at {} tokens", cut, longest);
  }
  if (nothing > 0) {
    kept += fmt::format("{}{} with nothing to learn", kept.empty() ? " (" : ", ", nothing);
  }
  kept += kept.empty() ? "" : ")";
  return fmt::format("{} records{}, {} tokens, {:.1f} % of them trained", records, kept, tokens,
                     percent(learnt, tokens));
}

MaskSummary summarise(const TokenRecords& records, std::optional<std::int32_t> start_token) {
  MaskSummary summary = {
      .records = records.size(), .cut = records.cut_records(), .longest = records.longest()};
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learnt;
  for (std::int64_t i = 0; i < summary.records; ++i) {
    records.read(i, ids, learnt);
    const auto labels = std::count_if(learnt.begin() + 1, learnt.end(),
                                      [](std::uint8_t flag) { return flag != 0; });
    summary.tokens += std::ssize(ids);
    summary.learnt += labels;
    summary.whole += labels > 0 && labels == std::ssize(ids) - 1 ? 1 : 0;
    summary.nothing += labels == 0 ? 1 : 0;
    summary.double_start += begins_twice(ids, start_token) ? 1 : 0;
  }
  return summary;
}

void check_masks(const MaskSummary& summary, std::string_view name, LossOn loss_on,
                 bool has_prompts) {
  const std::int64_t records = summary.records;
  if (summary.double_start > 0) {
    throw user_error(kWhere,
                     "{}: {} of {} records begin with the start token twice; the template and the "
                     "tokenizer both add it: take it out of one of them",
                     name, summary.double_start, records);
  }
  if (loss_on != LossOn::kAll && has_prompts && summary.whole == records) {
    throw user_error(kWhere,
                     "{}: all tokens of all {} records would be trained, prompts included, and "
                     "loss_on is {}; if that is meant, set it to all",
                     name, records, name_of(loss_on));
  }
  if (share(summary.nothing, records) > kMostWithNothing) {
    throw user_error(
        kWhere, "{}: {} of {} records ({:.1f} %) have nothing to learn, {:.0f} % may; {}", name,
        summary.nothing, records, percent(summary.nothing, records), 100 * kMostWithNothing,
        summary.cut > 0
            ? fmt::format("{} were cut at {} tokens, most before their answer: raise max_length",
                          summary.cut, summary.longest)
            : fmt::format("loss_on is {}: no token is marked by it", name_of(loss_on)));
  }
}

std::string marked_text(const TokenRecords& records, std::int64_t i, const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learnt;
  records.read(i, ids, learnt);
  std::string text;
  for (std::size_t begin = 0; begin < ids.size();) {
    const bool marked = learnt[begin] != 0;
    std::size_t end = begin;
    while (end < ids.size() && (learnt[end] != 0) == marked) {
      ++end;
    }
    const std::string part =
        shortened(tokenizer.decode(std::span(ids).subspan(begin, end - begin)));
    text += marked ? ">>" + part + "<<" : part;
    begin = end;
  }
  return text;
}

}  // namespace tandem
