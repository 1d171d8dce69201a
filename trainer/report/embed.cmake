# Writes TO: page.html with page.js in it as a string of C++. Literals of a few KiB each, which every compiler takes.
file(READ ${FROM}/page.html page)
file(READ ${FROM}/page.js script)
string(REPLACE "@SCRIPT@" "${script}" page "${page}")
string(LENGTH "${page}" length)
set(literals "")
set(at 0)
while(at LESS length)
  string(SUBSTRING "${page}" ${at} 8000 piece)
  string(APPEND literals "R\"~page~(${piece})~page~\"\n")
  math(EXPR at "${at} + 8000")
endwhile()
file(WRITE ${TO} "#include \"trainer/report/page.hpp\"\n
namespace tandem {\n
constexpr char kText[] =\n${literals};
const std::string_view kReportPage(kText, sizeof(kText) - 1);\n
}  // namespace tandem\n")
