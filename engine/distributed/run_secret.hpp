// engine/distributed/run_secret.hpp — finds or makes the secret that the ranks of a run share.
//
// The secret comes from TANDEM_RUN_SECRET (`tandem launch` sets it), else from the file that
// TANDEM_RUN_SECRET_FILE names. Under launchers that set neither, rank 0 makes one and writes it,
// with its port, into a note for the other ranks of its host: a file of mode 0600 in a folder that
// only this user can enter. Internal to RendezvousStore; blocks for file operations alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/distributed/environment.hpp"

namespace tandem {

/// Returns the secret that the user or `tandem launch` gave; empty if none. Throws a user error if
/// it is too short or too long, or if others can access the file.
[[nodiscard]] std::string given_secret(const Environment& environment);

struct Note {
  int port = 0;
  std::string secret;
};

/// The note of the run whose rendezvous is at the environment's port. It lies in the first suitable
/// folder of: XDG_RUNTIME_DIR, /tmp/tandem-UID, ~/.cache/tandem/runs. A folder that another user
/// owns or can enter is not suitable; if none is, one with a random name is made,
/// /tmp/tandem-UID.XXXXXX.
class MeetingNote {
 public:
  explicit MeetingNote(const Environment& environment);
  /// Removes what leave() wrote.
  ~MeetingNote();
  MeetingNote(const MeetingNote&) = delete;
  MeetingNote& operator=(const MeetingNote&) = delete;

  /// Rank 0 calls it; replaces the note of an earlier run. Throws a user error if no folder is
  /// suitable.
  void leave(const Note& note);
  void remove() noexcept;
  /// The other ranks call it. Returns nullopt while there is no note.
  [[nodiscard]] std::optional<Note> read() const;

 private:
  [[nodiscard]] std::optional<Note> read_in(const std::vector<std::string>& places) const;

  std::string name_;
  std::string left_;   // the path of the note that this process left; empty: none
  std::string spare_;  // the folder that was made for it; empty: none
};

}  // namespace tandem
