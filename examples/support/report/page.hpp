// examples/support/report/page.hpp — page.html with page.js in it, as the build embeds them.
#pragma once

#include <string_view>

namespace tandem {

/// What the page's data stands for, once in kReportPage.
inline constexpr std::string_view kReportDataMark = "@DATA@";
extern const std::string_view kReportPage;

}  // namespace tandem
