// runtime/detail/trace_events.hpp — writes records as events of the Chrome trace format, one per
// line.
//
// Invariant: the output is balanced wherever the window cuts: each async begin has its end, each
// arrow between threads its head, and the timestamps of a process do not go back. Arrows between
// ranks have their other end in another process, and are paired where the parts are merged.
// Internal.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "runtime/trace_file.hpp"

namespace tandem::trace::detail {

/// Receives one event: "{...}".
using EventSink = std::function<void(std::string_view line)>;

/// Writes this process's events in the window; the names of processes, threads and tracks come
/// last.
void write_events(const Window& window, const EventSink& sink);

/// Marks the line of an arrow between ranks; the arrow's id follows it.
inline constexpr std::string_view kRankArrowMark = R"("cat":"ranks","id":)";

}  // namespace tandem::trace::detail
