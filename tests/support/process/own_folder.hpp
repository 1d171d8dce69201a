// tests/support/process/own_folder.hpp — the folders and settings that a test process is given, so
// that it finds none of the user's.
//
// Home, cache, run-time and temporary folders lie in one new folder, which goes with the object.
// Rates that a plan would measure on this machine stand in the cache as one given rate. Variables
// that would reach the programs from the user's session (a launcher's ranks, folders of caches) are
// removed. Children inherit all of it, so every test program makes one object first: test binaries
// in support/process/main.cpp, all other tests in support/process/in_own_folder.cpp.
#pragma once

#include <filesystem>
#include <string>

namespace tandem::test {

class OwnFolder {
 public:
  /// Makes the folder in $TMPDIR, else in /tmp, and sets the environment. Ends the process with a
  /// line where it cannot be made. $TANDEM_TEST_RATE: the rate, in bytes or operations a second.
  /// $TANDEM_TEST_HOME=given: HOME and the caches stay as the caller has set them.
  /// $TANDEM_TEST_RATE_READERS: a file to which the destructor appends this process's command, its
  /// arguments apart by zeros, where the rates were read.
  OwnFolder();
  ~OwnFolder();
  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  std::string readers_;  // empty: it is not said
};

}  // namespace tandem::test
