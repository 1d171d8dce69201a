// `tandem inspect`: what training would learn from, as it would learn from it: records with their
// mask, lengths, and how well they pack.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "models/data/mask_check.hpp"
#include "models/data/open_records.hpp"
#include "models/data/packing.hpp"
#include "models/data/token_file.hpp"
#include "models/hub/hub_paths.hpp"
#include "models/pretrained.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/json_writer.hpp"
#include "runtime/util/one_line.hpp"
#include "tools/cli/commands.hpp"
#include "trainer/flags/run_flags.hpp"
#include "trainer/program/notes.hpp"
#include "trainer/program/program.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kDefaultRow = 2048;  // for the packing estimate, as the trainer's max_length
constexpr std::string_view kLearntColour = "\x1b[32m";
constexpr std::string_view kPlainColour = "\x1b[0m";

struct Flags {
  std::string model_name;
  std::string dataset_name;
  std::int64_t records = 3;
  std::int64_t max_length = 0;
  std::string loss_on;
  std::string append_eos;
  bool json = false;
  bool verify = false;
};

void add_flags(CLI::App& app, Flags& f) {
  app.add_option("--model_name", f.model_name, "a model's folder, or a hub id in the cache")
      ->required();
  app.add_option("--dataset_name", f.dataset_name,
                 "a token file (.tokens), or instruction records (.json, .jsonl, a cached hub id)")
      ->required();
  app.add_option("-n,--records", f.records,
                 "how many records are shown, from the first on; with --json all without it")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 48))
      ->capture_default_str();
  app.add_option("--max_length", f.max_length,
                 "cut records as training would; without it they are whole")
      ->check(CLI::Range(std::int64_t{1}, kUncutLength));
  app.add_option("--loss_on", f.loss_on, "of instruction records: all, assistant or completion")
      ->check(CLI::IsMember({"all", "assistant", "completion"}));
  app.add_option("--append_eos", f.append_eos, "of instruction records: on or off")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_flag("--json", f.json, "one object per record: ids, mask, text");
  app.add_flag("--verify", f.verify, "read a token file to its end and compare its hash");
}

/// Text of a stranger for a terminal: lines stay, other control characters are spelled out.
std::string shown(std::string_view text) {
  std::string out;
  while (true) {
    const std::size_t end = text.find('\n');
    out += one_line(text.substr(0, end));
    if (end == std::string_view::npos) {
      return out;
    }
    out += '\n';
    text.remove_prefix(end + 1);
  }
}

/// A record's text with its learnt parts between the marks.
std::string marked(const std::vector<std::int32_t>& ids, const std::vector<std::uint8_t>& learnt,
                   const Tokenizer& tokenizer, std::string_view open, std::string_view close) {
  std::string text;
  for (std::size_t begin = 0; begin < ids.size();) {
    std::size_t end = begin;
    while (end < ids.size() && learnt[end] == learnt[begin]) {
      ++end;
    }
    const std::string part = shown(tokenizer.decode(std::span(ids).subspan(begin, end - begin)));
    text += learnt[begin] != 0 ? fmt::format("{}{}{}", open, part, close) : part;
    begin = end;
  }
  return text;
}

void print_lengths(const TokenRecords& tokens, std::int64_t row) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(tokens.size()));
  for (std::int64_t i = 0; i < tokens.size(); ++i) {
    lengths[static_cast<std::size_t>(i)] = tokens.length(i);
  }
  std::ranges::sort(lengths);
  const auto percentile = [&](std::int64_t percent) {
    return lengths[static_cast<std::size_t>((std::ssize(lengths) - 1) * percent / 100)];
  };
  fmt::print("lengths  shortest {}, 10 % {}, median {}, 90 % {}, 99 % {}, longest {}\n",
             lengths.front(), percentile(10), percentile(50), percentile(90), percentile(99),
             lengths.back());
  const Packs packs(tokens, {.kind = Packing::kBfd, .room = row, .seed = RunFlags().seed});
  fmt::print("packing  {} records in {}\n", lengths.size(), packs.text());
}

void print_records(const TokenRecords& tokens, const Tokenizer& tokenizer, std::int64_t count) {
  const bool colours = ::isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learnt;
  for (std::int64_t i = 0; i < std::min(count, tokens.size()); ++i) {
    tokens.read(i, ids, learnt);
    fmt::print("\nrecord {} of {}: {} tokens, {} trained\n{}\n", i + 1, tokens.size(), ids.size(),
               std::ranges::count(learnt, 1),
               marked(ids, learnt, tokenizer, colours ? kLearntColour : ">>",
                      colours ? kPlainColour : "<<"));
  }
}

void print_json(const TokenRecords& tokens, const Tokenizer& tokenizer, std::int64_t count) {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learnt;
  for (std::int64_t i = 0; i < std::min(count, tokens.size()); ++i) {
    tokens.read(i, ids, learnt);
    JsonWriter json;
    json.begin_object().key("ids").value(ids).key("mask").value(learnt);
    json.key("text").value(tokenizer.decode(ids)).end_object();
    fmt::print("{}\n", json.text());
  }
}

/// The verdict of training on the masks.
void print_refusal(const OpenedRecords& opened, const std::string& name) {
  try {
    check_masks(opened.masks, name, opened.loss_on, opened.has_prompts);
  } catch (const Error& error) {
    fmt::print("refused  training ends with: {}\n", one_line(error.what()));
  }
}

}  // namespace

int run_inspect(int argc, char** argv) {
  CLI::App app("Shows records as training learns from them, with their mask.", "tandem inspect");
  Flags flags;
  add_flags(app, flags);
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  const std::filesystem::path folder = resolve_tokenizer_folder(flags.model_name);
  const Tokenizer tokenizer = Tokenizer::load(folder);
  const std::filesystem::path file = resolve_dataset_file(flags.dataset_name);
  print_resolved(flags.model_name, folder);
  print_resolved(flags.dataset_name, file);
  const OpenedRecords opened = open_records(
      file, folder, tokenizer,
      {.max_length = flags.max_length > 0 ? flags.max_length : kUncutLength,
       .loss_on = parse_enum<LossOn>(flags.loss_on),
       .append_eos =
           flags.append_eos.empty() ? std::nullopt : std::optional(flags.append_eos == "on")});
  if (flags.verify) {
    if (const auto* file = dynamic_cast<const TokenFile*>(opened.tokens.get())) {
      file->verify();
    }
  }
  if (flags.json) {
    if (!opened.note.empty()) {
      print_notes(std::array{fmt::format("{}: {}", flags.dataset_name, opened.note)});
    }
    const bool all = app.get_option("--records")->count() == 0;
    print_json(*opened.tokens, tokenizer, all ? opened.tokens->size() : flags.records);
    return 0;
  }
  fmt::print("data     {}: {}; {}\n", one_line(flags.dataset_name), opened.masks.text(),
             one_line(opened.how));
  if (!opened.note.empty()) {
    fmt::print("note     {}\n", one_line(opened.note));
  }
  print_lengths(*opened.tokens, flags.max_length > 0 ? flags.max_length : kDefaultRow);
  print_refusal(opened, flags.dataset_name);
  print_records(*opened.tokens, tokenizer, flags.records);
  return 0;
}

}  // namespace tandem
