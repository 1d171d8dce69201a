// A run's folder as the report reads it: metrics.jsonl, behind a zero byte summary.json, behind
// another one notes.txt.
#include "trainer/report/run_report.hpp"

#include <algorithm>

#include "tests/fuzz/fuzz.hpp"
#include "trainer/report/page.hpp"

namespace tandem {
const std::string_view kReportPage = "@DATA@";  // the page itself is no input
}  // namespace tandem

namespace tandem::fuzz {

void read(std::string_view input) {
  for (const char* name : {"metrics.jsonl", "summary.json", "notes.txt"}) {
    const std::size_t end = std::min(input.find('\0'), input.size());
    (void)put(input.substr(0, end), name);
    input.remove_prefix(std::min(end + 1, input.size()));
  }
  const std::string page = report_page({folder()});
  expect(page.find('<') == std::string::npos, "a run's text ends no script element");
}

}  // namespace tandem::fuzz
