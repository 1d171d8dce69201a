// tools/cli/status_client.hpp — what a run answers at its status socket, and what `tandem top`
// shows of it. What answers may be a stranger's: it is bounded, and its words are escaped. Any
// thread.
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
