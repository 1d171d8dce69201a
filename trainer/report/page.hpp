// trainer/report/page.hpp — page.html with page.js in it, as the build embeds them.
#pragma once

#include <string_view>

namespace tandem {

/// The mark that occurs once in kReportPage and is replaced by the page's data.
inline constexpr std::string_view kReportDataMark = "@DATA@";
extern const std::string_view kReportPage;

}  // namespace tandem
