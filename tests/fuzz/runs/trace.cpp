// trace.json.gz of a run's folder, as the report shows it; what is not packed is read as it is.
#include <simdjson.h>

#include "tests/fuzz/fuzz.hpp"
#include "trainer/report/trace_window.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  JsonWriter json;
  write_trace_window(json, put(input, "trace.json.gz"));
  simdjson::dom::parser parser;
  expect(parser.parse(json.text()).error() == simdjson::SUCCESS, "a page's data is JSON");
}

}  // namespace tandem::fuzz
