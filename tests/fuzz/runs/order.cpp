// The text that a node of a launch reads as its order, or a host's news of its ranks. The first
// byte says which.
#include "tests/fuzz/fuzz.hpp"
#include "tools/launch/node_link.hpp"

namespace tandem::fuzz {
namespace {

void read_order(std::string_view input) {
  const NodeOrder order = decode(input);
  const std::string text = encode(order, "key");
  const NodeOrder again = decode(std::string_view(text).substr(text.find('\n') + 1));
  expect(encode(again, "key") == text, "an order that is accepted reads back as itself");
  const RankPlaces& places = order.places;
  expect(!order.settings.command.empty() && places.here >= 1 &&
             places.first + places.here <= places.world && places.host < places.hosts,
         "an order has a command and ranks of its world");
}

void read_news(std::string_view input) {
  const auto news = parse_news(input);
  expect(!news || (news->code >= 0 && news->code <= 255 && news->blamed.value_or(0) >= 0),
         "news have a code of a process and name no rank below 0");
  const bool is_of_rank =
      news && (news->what == News::What::kFailed || news->what == News::What::kStopped ||
               news->what == News::What::kRuns);
  expect(!is_of_rank || news->rank >= 0, "news of a rank name one");
}

}  // namespace

void read(std::string_view input) {
  const bool is_order = !input.empty() && input.front() % 2 == 0;
  input.remove_prefix(input.empty() ? 0 : 1);
  is_order ? read_order(input) : read_news(input);
}

}  // namespace tandem::fuzz
