// A token file: what is accepted can be read from the first record to the last or says which one is
// damaged, and never gives an id outside of its vocabulary.
#include "models/data/token_file.hpp"

#include <algorithm>

#include "runtime/util/error.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  const std::filesystem::path path = put(input, "data.tokens");
  constexpr std::int64_t kMaxLength = 3;
  const TokenFile file(path);
  const TokenFile cut(path, {.max_length = kMaxLength, .percentage = 70});
  (void)file.fingerprint();
  (void)file.summary(1);
  (void)cut.summary(1);
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learnt;
  for (std::int64_t i = 0; i < file.size(); ++i) {
    file.read(i, ids, learnt);
    expect(!ids.empty() && ids.size() == learnt.size(), "a mask has an entry for each token");
    expect(std::ssize(ids) == file.length(i) && file.length(i) <= file.longest(),
           "lengths are those of what is read");
    expect(std::ranges::all_of(learnt, [](std::uint8_t bit) { return bit <= 1; }), "bits");
  }
  for (std::int64_t i = 0; i < cut.size(); ++i) {
    cut.read(i, ids, learnt);
    expect(std::ssize(ids) <= kMaxLength && std::ssize(ids) == cut.length(i), "records are cut");
  }
  file.verify();
}

}  // namespace tandem::fuzz
