// runtime/ucx/ucx_backend.hpp — frames as UCX's tagged messages: credits, order, farewells, lost
// peers.
//
// Invariant: an operation waits in its channel's queue or is under way in UCX, whose callback ends
// it; a receive that waits for its frame is both, and can be withdrawn. A peer is closed once both
// sides have said bye or abort, or UCX says that it is gone.
// Thread rule: the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/event_loop.hpp"
#include "runtime/io/net.hpp"
#include "runtime/io/reactor_wake.hpp"
#include "runtime/poller.hpp"
#include "runtime/ucx/ucx_net.hpp"
#include "runtime/ucx/ucx_peer.hpp"
#include "runtime/ucx/ucx_tag.hpp"
#include "runtime/ucx/ucx_worker.hpp"

namespace tandem::detail {

class UcxBackend final : public NetBackend, private Poller {
 public:
  UcxBackend(EventLoop& loop, const UcxNetOptions& options);
  ~UcxBackend() override;

  [[nodiscard]] std::string address() const { return worker_.address(); }
  /// Blocks; throws an Error.
  void connect(const std::vector<std::string>& addresses);

  [[nodiscard]] std::uint32_t rank() const noexcept override { return options_.rank; }
  [[nodiscard]] std::uint32_t world() const noexcept override { return options_.world; }
  void submit(NetOp& op) override;
  bool cancel(NetOp& op) noexcept override;
  void abort(std::uint32_t failed_rank) override;
  void send_heartbeat(std::uint32_t peer, std::size_t place, std::uint16_t word) override;
  [[nodiscard]] PeerHeartbeats heartbeats_of(std::uint32_t peer) const noexcept override {
    return peers_[peer].heartbeats;
  }
  void register_memory(std::span<std::byte> memory) override { worker_.register_memory(memory); }

 private:
  struct Linger : TimerOp {
    explicit Linger(UcxBackend& net_in) noexcept : TimerOp(&Linger::over), net(net_in) {}
    static void over(Op& op) noexcept { static_cast<Linger&>(op).net.close_all(); }
    UcxBackend& net;
  };

  bool poll() noexcept override { return progress(); }
  bool poll_before_sleep() noexcept override;
  bool progress() noexcept;
  [[nodiscard]] bool spin_for_frames() noexcept;
  void wait_until(const std::function<bool()>& done, Duration patience);

  using Kind = UcxTag::Kind;

  [[nodiscard]] UcxChannel& channel_of(UcxPeer& peer, const NetOp& op) {
    return peer.channel(op.request.channel, options_.window_frames);
  }
  void start_sends(UcxPeer& peer, UcxChannel& channel) noexcept;
  void send_frame(UcxPeer& peer, NetOp& op) noexcept;
  void say(UcxPeer& peer, Kind kind, std::uint32_t value = 0) noexcept;
  void say_farewell(UcxPeer& peer, Kind kind, std::uint32_t value) noexcept;

  void arrive(ucp_tag_message_h message, const ucp_tag_recv_info_t& info) noexcept;
  void arrive_credit(UcxPeer& peer, std::uint32_t number) noexcept;
  void take_arrived(UcxPeer& peer, UcxChannel& channel, NetOp& op) noexcept;
  void post_receive(UcxPeer& peer, UcxChannel& channel, NetOp& op) noexcept;
  void end_received(NetOp& op, ucs_status_t status, std::size_t bytes) noexcept;
  void count_taken(UcxPeer& peer, std::uint32_t number) noexcept;
  [[nodiscard]] bool withdraw(const UcxPosted& posted) noexcept;

  static void on_error(void* peer, ucp_ep_h endpoint, ucs_status_t status) noexcept;
  static void on_moved(UcxBackend& net, void* request, ucs_status_t status) noexcept;
  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                          void* net) noexcept;
  void hold(ucs_status_ptr_t request, NetOp& op) noexcept;
  NetOp& release(void* request) noexcept;
  void end_moved(NetOp& op, ucs_status_t status) noexcept;
  void end(NetOp& op, NetOp::End how) noexcept;

  void break_all(std::uint32_t failed_rank) noexcept;
  void lose(UcxPeer& peer, std::uint32_t failed_rank) noexcept;
  void drop_arrived(UcxPeer& peer) noexcept;
  void fail_waiting(UcxPeer& peer, std::uint32_t failed_rank) noexcept;
  void settle() noexcept;
  void close(UcxPeer& peer) noexcept;
  void close_all() noexcept;

  EventLoop& loop_;
  UcxNetOptions options_;
  UcxWorker worker_;
  ReactorWake wake_;
  Linger linger_{*this};
  std::vector<UcxPeer> peers_;   // by rank; this rank's own has no endpoint
  std::uint32_t under_way_ = 0;  // operations that UCX has
  bool withdrawing_ = false;     // the callback that comes now is of a withdrawn receive
  bool unsettled_ = false;       // settle() has to look at the peers
  std::uint64_t ended_ = 0;      // operations, since the beginning
  std::uint64_t moves_ = 0;      // turns of UCX that found something to do
  const bool may_spin_ = spin_setting() != Spin::kNever;
  std::uint32_t waited_for_ = 0;  // operations that have not ended
  // Spins that found nothing are followed by sleeps without one: 1, 2, 4 ... of them.
  std::uint32_t skip_ = 0;
  std::uint32_t skip_after_miss_ = 1;
};

}  // namespace tandem::detail
