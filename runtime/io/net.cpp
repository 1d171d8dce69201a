#include "runtime/io/net.hpp"

namespace tandem {

void NetOp::throw_if_failed() const {
  const auto describe = [this] {
    return fmt::format("{} rank {} on channel {}",
                       request.kind == Kind::kSend ? "send to" : "receive from", request.peer,
                       request.channel);
  };
  switch (end) {
    case End::kStopped:
      throw Stopped();
    case End::kPeerLost:
      throw PeerLost(
          failed_rank == kUnknownRank
              ? fmt::format(
                    "[net] a rank failed, and it is not known which: {} cannot end; see the "
                    "others' output",
                    describe())
              : fmt::format("[net] rank {} is lost: {} cannot end; see that rank's output",
                            failed_rank, describe()),
          failed_rank);
    case End::kTooLong:
      throw failure(ExitCode::kPeer, "net", "{}: a frame of {} bytes came, there is room for {}",
                    describe(), moved, request.bytes);
    case End::kNone:
    case End::kDone:
      break;
  }
}

}  // namespace tandem
