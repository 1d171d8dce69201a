// engine/distributed/run_secret.hpp — where the ranks of a run have their secret from.
//
// From TANDEM_RUN_SECRET (`tandem launch` sets it), else from the file that TANDEM_RUN_SECRET_FILE
// names. Under launchers that know neither, rank 0 makes one and leaves it, with the port it
// listens at, as a note for the other ranks of its host: a file of mode 0600 in a folder that this
// user alone can enter. Internal to RendezvousStore; blocks for file operations alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/distributed/environment.hpp"

namespace tandem {

/// The text of the secret that the user or `tandem launch` gave; empty: none was given. Throws a
/// user error when it is too short or too long, or when the file is not this user's alone.
[[nodiscard]] std::string given_secret(const Environment& environment);

struct Note {
  int port = 0;
  std::string secret;
};

/// The note of the run that meets at the environment's port. The folders looked at, in this order:
/// XDG_RUNTIME_DIR, /tmp/tandem-UID, ~/.cache/tandem/runs. One that another user owns or can enter
/// does not count; where none of them does, one with a random name is made, /tmp/tandem-UID.XXXXXX.
class MeetingNote {
 public:
  explicit MeetingNote(const Environment& environment);
  /// Removes what leave() wrote.
  ~MeetingNote();
  MeetingNote(const MeetingNote&) = delete;
  MeetingNote& operator=(const MeetingNote&) = delete;

  /// Rank 0 calls it; replaces the note that an earlier run left. Throws a user error when no
  /// folder is fit for it.
  void leave(const Note& note);
  void remove() noexcept;
  /// The other ranks call it; none: there is no note (yet).
  [[nodiscard]] std::optional<Note> read() const;

 private:
  [[nodiscard]] std::optional<Note> read_in(const std::vector<std::string>& places) const;

  std::string name_;
  std::string left_;   // the path of the note that this process left; empty: none
  std::string spare_;  // the folder that was made for it; empty: none
};

}  // namespace tandem
