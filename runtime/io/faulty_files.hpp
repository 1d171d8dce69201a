// runtime/io/faulty_files.hpp — a FileBackend that goes wrong on purpose: short transfers and
// errors where a rule says so.
//
// It stands in front of another back end. The rule is asked once per call, in the order of the
// calls; a call without a fault goes on to that back end. An injected error takes the place of the
// call, which is then not done.
// Thread rule: the loop's thread.
// Cancel rule: that of the back end behind it.
//
//   auto faulty = std::make_unique<FaultyFiles>(loop, FileIo::make_backend(loop, {}));
//   faulty->set_rule([](const FileOp&, std::uint64_t call) {
//     return FileFault{.error_number = call == 3 ? ENOSPC : 0};
//   });
//   FileIo io(loop, std::move(faulty));
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/io/file_backend.hpp"

namespace tandem {

/// The fault of one call; by default there is none.
struct FileFault {
  int error_number = 0;       // the call fails with it
  std::size_t bytes_max = 0;  // a transfer moves no more; 0: no limit
};

class FaultyFiles final : public FileBackend {
 public:
  /// `call` counts from 1, every call of every operation.
  using Rule = std::function<FileFault(const FileOp& op, std::uint64_t call)>;

  FaultyFiles(EventLoop& loop, std::unique_ptr<FileBackend> behind) noexcept;

  void set_rule(Rule rule) { rule_ = std::move(rule); }
  [[nodiscard]] std::uint64_t calls() const noexcept { return calls_; }
  [[nodiscard]] std::uint64_t faults() const noexcept { return faults_; }

  void submit(FileOp& op) noexcept override;
  void cancel(FileOp& op) noexcept override;
  [[nodiscard]] std::string_view name() const noexcept override { return behind_->name(); }
  [[nodiscard]] bool owns_descriptors() const noexcept override {
    return behind_->owns_descriptors();
  }
  void drop(int descriptor) noexcept override { behind_->drop(descriptor); }

 private:
  EventLoop& loop_;
  std::unique_ptr<FileBackend> behind_;
  Rule rule_;
  std::uint64_t calls_ = 0;
  std::uint64_t faults_ = 0;
};

}  // namespace tandem
