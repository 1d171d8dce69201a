// tools/cli/status_client.hpp — a run's answer at its status socket, and its display by `tandem
// top`. The answer may be a stranger's: it is bounded, and its text is escaped. Any thread.
#pragma once

#include <optional>
#include <string>

namespace tandem {

/// The body of `GET page`, where something answers at the address (a path, or 127.0.0.1:PORT) with
/// at most 4 MiB within two seconds.
[[nodiscard]] std::optional<std::string> get_status(const std::string& address,
                                                    const std::string& page);

/// Tasks by how long they wait, and mailboxes with messages, as lines. Nothing where `json` is no
/// answer of a run.
[[nodiscard]] std::optional<std::string> waits_text(const std::string& json);

}  // namespace tandem
