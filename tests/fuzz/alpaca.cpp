// Instruction records; the first byte says whether the file is .json or .jsonl.
#include "models/data/alpaca.hpp"

#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  const bool lines = input.starts_with('l');
  const auto path = put(input.substr(input.empty() ? 0 : 1), lines ? "d.jsonl" : "d.json");
  for (const AlpacaRecord& record : read_alpaca(path)) {
    (void)alpaca_text(record);
  }
}

}  // namespace tandem::fuzz
