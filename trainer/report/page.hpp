// trainer/report/page.hpp — page.html with page.js in it, as the build embeds them.
#pragma once

#include <string_view>

namespace tandem {

/// The mark in kReportPage, once, in whose place the page's data comes.
inline constexpr std::string_view kReportDataMark = "@DATA@";
extern const std::string_view kReportPage;

}  // namespace tandem
