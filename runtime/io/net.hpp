// runtime/io/net.hpp — the interface for frames of bytes between ranks, over channels; implemented
// with UCX between hosts (runtime/ucx) and by the simulator (runtime/sim).
//
// A channel is a number that both ends agree on. Frames of one (sender, receiver, channel) arrive
// whole, once and in order; between channels there is no order. A send ends when its buffer may be
// reused, not when the frame has arrived; each channel takes a few frames ahead of the receiver,
// then sends wait. A long frame's send may wait for its receive, so no rank awaits a send before it
// begins the receive that its peer waits for. A receive gets the next frame and its size. Failures:
// if a peer disconnects, all present and later operations with it fail with PeerLost, which names
// the rank at fault. A rank that aborts names the failed rank with abort(): every peer's operations
// then fail with that rank, so that no rank blames a rank that only noticed the failure. A failure
// is permanent. Silence of a peer is not a failure here: heartbeats carry a few numbers, by which
// the users of the net tell a waiting rank from a hung one.
// Thread rule: the loop's thread. Buffers belong to the operation until its await returns.
// Cancel rule: a stopped receive ends at once and takes no frame; once a frame moves into its
// buffer, it ends with that frame. A stopped send ends at once if nothing of it has left, else when
// all of it has left.
//
//   co_await net.send(peer, kGradients, bytes);
//   std::size_t n = co_await net.recv(peer, kGradients, into);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "runtime/event_loop.hpp"
#include "runtime/stop_token.hpp"
#include "runtime/task.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

/// Stands for the rank at fault if it is not known.
inline constexpr std::uint32_t kUnknownRank = UINT32_MAX;

/// A rank is gone, or was given up: "[net] rank 2 is lost: receive from rank 0 on channel 1 cannot
/// end".
class PeerLost : public Error {
 public:
  PeerLost(const std::string& text, std::uint32_t rank)
      : Error(ExitCode::kPeer, text), rank_(rank) {}
  /// The rank at fault, or kUnknownRank; not always the peer of the operation that failed.
  [[nodiscard]] std::uint32_t rank() const noexcept { return rank_; }

 private:
  std::uint32_t rank_;
};

/// One send or receive on its way; lives in the awaiting coroutine's frame. Internal.
struct NetOp {
  enum class Kind : unsigned char { kSend, kReceive };
  enum class End : unsigned char { kNone, kDone, kPeerLost, kTooLong, kStopped };

  struct Request {
    Kind kind;
    std::uint32_t peer;
    std::uint32_t channel;
    const std::byte* from = nullptr;  // of a send
    std::byte* into = nullptr;        // of a receive
    std::size_t bytes = 0;            // to send; room to receive in
  };

  explicit NetOp(const Request& what) noexcept : request(what) {}

  Request request;
  End end = End::kNone;
  std::size_t moved = 0;          // kDone: the bytes; kTooLong: the frame's size
  std::uint32_t failed_rank = 0;  // kPeerLost
  detail::ResumeOp resume;

  void throw_if_failed() const;
};

/// The heartbeats that have come from a peer.
struct PeerHeartbeats {
  static constexpr std::size_t kPlaces = 4;
  static constexpr std::uint32_t kWordsMax = 1U << 14;

  std::uint64_t count = 0;                     // of those received; only grows
  std::array<std::uint16_t, kPlaces> words{};  // the last one of each place
};

/// Carries operations out: sets the op's `end` and posts its `resume` to the loop, once. Internal.
class NetBackend {
 public:
  virtual ~NetBackend() = default;
  [[nodiscard]] virtual std::uint32_t rank() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t world() const noexcept = 0;
  virtual void submit(NetOp& op) = 0;
  /// Cancels the op. Returns false if it is too late: the op has ended, or will end by itself.
  virtual bool cancel(NetOp& op) noexcept = 0;
  virtual void abort(std::uint32_t failed_rank) = 0;
  virtual void send_heartbeat(std::uint32_t peer, std::size_t place, std::uint16_t word) = 0;
  [[nodiscard]] virtual PeerHeartbeats heartbeats_of(std::uint32_t peer) const noexcept = 0;
  virtual void register_memory(std::span<std::byte> /*memory*/) {}
};

class Net {
  template <class T>
  class Awaiter;

 public:
  explicit Net(std::unique_ptr<NetBackend> backend) noexcept : backend_(std::move(backend)) {}

  [[nodiscard]] std::uint32_t rank() const noexcept { return backend_->rank(); }
  [[nodiscard]] std::uint32_t world() const noexcept { return backend_->world(); }

  [[nodiscard]] Awaiter<void> send(std::uint32_t peer, std::uint32_t channel,
                                   std::span<const std::byte> frame, StopToken stop = {});
  /// co_await returns the size of the frame. A frame that does not fit `into` is an Error, and is
  /// lost.
  [[nodiscard]] Awaiter<std::size_t> recv(std::uint32_t peer, std::uint32_t channel,
                                          std::span<std::byte> into, StopToken stop = {});
  /// Gives up because of `failed_rank`, which may be this rank: everything on this net fails, here
  /// and at all peers.
  void abort(std::uint32_t failed_rank) { backend_->abort(failed_rank); }
  /// Sends a heartbeat to `peer`, with a word (below PeerHeartbeats::kWordsMax) for one place of
  /// the PeerHeartbeats that the peer keeps of this rank. It takes no credit; heartbeats to one
  /// peer keep their order. A heartbeat to a lost peer is dropped.
  void send_heartbeat(std::uint32_t peer, std::size_t place, std::uint16_t word) {
    TANDEM_CHECK(peer < world() && peer != rank() && place < PeerHeartbeats::kPlaces &&
                     word < PeerHeartbeats::kWordsMax,
                 "a heartbeat's place and word are in range");
    backend_->send_heartbeat(peer, place, word);
  }
  [[nodiscard]] PeerHeartbeats heartbeats_of(std::uint32_t peer) const noexcept {
    return backend_->heartbeats_of(peer);
  }
  /// Prepares `memory` (an arena), in which frames will often lie: the transport now does once what
  /// it would do before each frame. The memory must outlive this net.
  void register_memory(std::span<std::byte> memory) { backend_->register_memory(memory); }

 private:
  std::unique_ptr<NetBackend> backend_;
};

template <class T>
class Net::Awaiter {
 public:
  static constexpr const char* kAwaitName = "net";
  Awaiter(NetBackend& backend, const NetOp::Request& request, StopToken stop) noexcept
      : backend_(backend), op_(request), stop_(stop), on_stop_(*this) {
    TANDEM_CHECK(request.peer < backend.world() && request.peer != backend.rank(),
                 "a peer is another rank");
  }
  Awaiter(const Awaiter&) = delete;
  Awaiter& operator=(const Awaiter&) = delete;

  bool await_ready() noexcept {
    if (stop_.stop_requested()) {
      op_.end = NetOp::End::kStopped;
    }
    return op_.end != NetOp::End::kNone;
  }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) {
    op_.resume.set(coroutine);
    loop_ = &EventLoop::current();
    stop_.link(on_stop_);
    backend_.submit(op_);
  }
  T await_resume() {
    on_stop_.unlink();
    op_.throw_if_failed();
    if constexpr (!std::is_void_v<T>) {
      return op_.moved;
    }
  }

 private:
  friend class Net;
  struct OnStop : StopCallback {
    explicit OnStop(Awaiter& owner) noexcept
        : StopCallback([](StopCallback& self) noexcept {
            Awaiter& awaiter = static_cast<OnStop&>(self).awaiter;
            if (planted(Bug::kUseAfterCancel) || awaiter.backend_.cancel(awaiter.op_)) {
              awaiter.op_.end = NetOp::End::kStopped;
              awaiter.loop_->post(awaiter.op_.resume);
            }
          }),
          awaiter(owner) {}
    Awaiter& awaiter;
  };

  NetBackend& backend_;
  NetOp op_;
  StopToken stop_;
  EventLoop* loop_ = nullptr;
  OnStop on_stop_;
};

inline Net::Awaiter<void> Net::send(std::uint32_t peer, std::uint32_t channel,
                                    std::span<const std::byte> frame, StopToken stop) {
  return {*backend_,
          NetOp::Request{.kind = NetOp::Kind::kSend,
                         .peer = peer,
                         .channel = channel,
                         .from = frame.data(),
                         .bytes = frame.size()},
          stop};
}

inline Net::Awaiter<std::size_t> Net::recv(std::uint32_t peer, std::uint32_t channel,
                                           std::span<std::byte> into, StopToken stop) {
  return {*backend_,
          NetOp::Request{.kind = NetOp::Kind::kReceive,
                         .peer = peer,
                         .channel = channel,
                         .into = into.data(),
                         .bytes = into.size()},
          stop};
}

}  // namespace tandem
