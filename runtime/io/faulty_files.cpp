#include "runtime/io/faulty_files.hpp"

#include "runtime/event_loop.hpp"

namespace tandem {

FaultyFiles::FaultyFiles(EventLoop& loop, std::unique_ptr<FileBackend> behind) noexcept
    : loop_(loop), behind_(std::move(behind)) {}

void FaultyFiles::submit(FileOp& op) noexcept {
  const FileFault fault = rule_ ? rule_(op, ++calls_) : FileFault{};
  op.failed_on_purpose = fault.error_number != 0;
  if (fault.error_number != 0 || fault.bytes_max != 0) {
    ++faults_;
  }
  if (fault.error_number != 0) {
    op.outcome = -fault.error_number;
    loop_.post(op);
    return;
  }
  if (fault.bytes_max != 0) {
    op.limit_call(fault.bytes_max);
  }
  behind_->submit(op);
}

void FaultyFiles::cancel(FileOp& op) noexcept {
  if (!op.failed_on_purpose) {  // else it is on its way back
    behind_->cancel(op);
  }
}

}  // namespace tandem
