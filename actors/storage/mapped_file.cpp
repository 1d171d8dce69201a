#include "actors/storage/mapped_file.hpp"

#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <system_error>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

thread_local sigjmp_buf* landing = nullptr;  // of the guarded access that this thread is in

struct sigaction& previous_action() {
  static struct sigaction action = {};
  return action;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  // Whether a faulting access of this thread sent it, and not kill(2).
  if (landing != nullptr && info->si_code > 0) {
    siglongjmp(*landing, 1);
  }
  const struct sigaction& previous = previous_action();
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    ::signal(signal, previous.sa_handler);  // the access is made again, and ends the process
    if (info->si_code <= 0) {
      ::raise(signal);
    }
  }
}

void watch_bus_errors() {
  static const bool watching = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, &previous_action()) == 0;
  }();
  (void)watching;
}

/// madvise of the pages that `part` touches; false where the system does not know it. It reads all
/// the same.
bool advise(std::span<const std::byte> part, int advice) noexcept {
  static const auto page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(part.data());
  const std::uintptr_t from = begin / page_bytes * page_bytes;
  return ::madvise(reinterpret_cast<void*>(from), begin + part.size() - from, advice) == 0;
}

}  // namespace

MappedFile::MappedFile(const FileHandle& file, std::uint64_t size_bytes,
                       const std::filesystem::path& path, std::string_view where) {
  if (size_bytes == 0) {
    return;
  }
  void* data = ::mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) {
    throw user_error(where, "cannot map {} ({} bytes): {}; check the address space limit",
                     path.string(), size_bytes, std::generic_category().message(errno));
  }
  data_ = static_cast<const std::byte*>(data);
  size_bytes_ = size_bytes;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_bytes_);
  }
}

bool MappedFile::call_guarded(void (*access)(const void*), const void* argument) {
  watch_bus_errors();
  sigjmp_buf here;
  sigjmp_buf* const outer = landing;
  if (sigsetjmp(here, 1) != 0) {  // with the mask: the signal is blocked while its handler runs
    landing = outer;
    return false;
  }
  landing = &here;
  access(argument);
  landing = outer;
  return true;
}

void MappedFile::fetch(std::span<const std::byte> part) noexcept {
  if (!advise(part, MADV_POPULATE_READ)) {  // Linux 5.14
    (void)advise(part, MADV_WILLNEED);
  }
}

void MappedFile::release(std::span<const std::byte> part) noexcept {
  (void)advise(part, MADV_DONTNEED);
}

}  // namespace tandem
