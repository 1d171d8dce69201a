// `tandem tokenize`: JSON strings on standard input, one per line; their token ids on standard
// output, one JSON array per line, in the same order.
#include <iostream>
#include <string>

#include <CLI/CLI.hpp>

#include "actors/storage/json.hpp"
#include "models/io/tokenizer/tokenizer.hpp"
#include "runtime/util/error.hpp"
#include "tools/cli/commands.hpp"
#include "trainer/program/program.hpp"

namespace tandem {
namespace {

void tokenize_lines(const Tokenizer& tokenizer, bool add_special_tokens, std::istream& in,
                    std::ostream& out) {
  std::string line;
  std::string answer;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    const JsonDocument document =
        JsonDocument::parse(line, {.where = "tokenize",
                                   .file = fmt::format("standard input, line {}", number),
                                   .advice = "give one JSON string per line"});
    answer = "[";
    for (const std::int32_t id : tokenizer.encode(document.root().string(), add_special_tokens)) {
      answer += answer.size() > 1 ? ", " : "";
      answer += std::to_string(id);
    }
    out << answer << "]\n";
  }
  out.flush();
  if (!out) {
    throw failure(ExitCode::kFailure, "tokenize", "cannot write to standard output; check it");
  }
}

}  // namespace

int run_tokenize(int argc, char** argv) {
  CLI::App app("Token ids of the JSON strings on standard input, one per line", "tandem tokenize");
  std::string folder;
  bool add_special_tokens = false;
  app.add_option("--model_name", folder, "folder that holds tokenizer.json")->required();
  app.add_flag("--add_special_tokens", add_special_tokens,
               "add what the tokenizer's post-processor adds (BOS, EOS)");
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  std::ios::sync_with_stdio(false);
  tokenize_lines(Tokenizer::load(folder), add_special_tokens, std::cin, std::cout);
  return 0;
}

}  // namespace tandem
