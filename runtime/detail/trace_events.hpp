// runtime/detail/trace_events.hpp — records as events of the Chrome trace format, a line each.
//
// Invariant: what is written is balanced whatever the window cut: each async begin has its end,
// each arrow between threads its head, and the timestamps of a process do not go back. Arrows
// between ranks have their other end in another process, and are paired where the parts are merged.
// Internal.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "runtime/trace_file.hpp"

namespace tandem::trace::detail {

/// Takes an event: "{...}".
using EventSink = std::function<void(std::string_view line)>;

/// This process's, in the window; names of processes, threads and tracks last.
void write_events(const Window& window, const EventSink& sink);

/// In the line of an arrow between ranks, behind which its id stands.
inline constexpr std::string_view kRankArrowMark = R"("cat":"ranks","id":)";

}  // namespace tandem::trace::detail
