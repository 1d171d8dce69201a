// How a UCX net begins and ends: hellos, farewells, lost peers, operations' ends.
#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/ucx/ucx_backend.hpp"
#include "runtime/util/error.hpp"

namespace tandem::detail {

void UcxBackend::connect(const std::vector<std::string>& addresses) {
  TANDEM_CHECK_EQ(addresses.size(), peers_.size(), "each rank has an address");
  for (UcxPeer& peer : peers_) {
    if (peer.rank != rank()) {
      peer.endpoint = worker_.connect(addresses[peer.rank], &UcxBackend::on_error, &peer);
      say(peer, Kind::kHello, options_.window_frames);
    }
  }
  const auto is_missing = [](const UcxPeer& peer) { return peer.is_talking() && !peer.window; };
  wait_until([&] { return std::ranges::none_of(peers_, is_missing); }, options_.connect_timeout);
  std::vector<std::string> missing;
  std::uint32_t first_missing = 0;
  for (const UcxPeer& peer : peers_) {
    if (peer.rank != rank() && !peer.window) {
      if (missing.empty()) {
        first_missing = peer.rank;
      }
      missing.push_back(options_.hosts.empty()
                            ? std::to_string(peer.rank)
                            : fmt::format("{} (on host {})", peer.rank, options_.hosts[peer.rank]));
    } else if (peer.rank != rank() && *peer.window != options_.window_frames) {
      throw failure(ExitCode::kPeer, "net", "rank {} has a window of {} frames, rank {} one of {}",
                    peer.rank, *peer.window, rank(), options_.window_frames);
    }
  }
  if (!missing.empty()) {
    throw PeerLost(fmt::format("[net] rank {} receives nothing from rank {} over UCX within {:.0f} "
                               "s; see those ranks' "
                               "output, the firewall, UCX_NET_DEVICES and UCX_TLS",
                               rank(), fmt::join(missing, ", "),
                               std::chrono::duration<double>(options_.connect_timeout).count()),
                   first_missing);
  }
  loop_.add_poller(*this);
}

UcxBackend::~UcxBackend() {
  loop_.remove_poller(*this);
  for (UcxPeer& peer : peers_) {
    TANDEM_CHECK(under_way_ == 0 && !peer.has_waiting(), "operations outlive their net");
    say_farewell(peer, Kind::kBye, 0);
  }
  // Messages that were sent arrive; those that come meanwhile are dropped. A rank at fault does not
  // answer.
  const auto is_awaited = [](const UcxPeer& peer) {
    return peer.is_talking() && peer.failed_rank != peer.rank;
  };
  wait_until([&] { return std::ranges::none_of(peers_, is_awaited); }, options_.linger);
  close_all();
  wait_until([this] { return !worker_.is_closing(); }, options_.linger);
  loop_.take_back(linger_);
}

void UcxBackend::wait_until(const std::function<bool()>& done, Duration patience) {
  const TimePoint deadline = Clock::real().now() + patience;
  for (progress(); !done(); progress()) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::real().now()).count();
    if (left <= 0) {
      return;
    }
    worker_.wait(static_cast<int>(std::min<std::int64_t>(left, 1000)));
  }
}

void UcxBackend::abort(std::uint32_t failed_rank) {
  break_all(failed_rank);
  settle();
}

void UcxBackend::on_error(void* peer, ucp_ep_h /*endpoint*/, ucs_status_t /*status*/) noexcept {
  static_cast<UcxPeer*>(peer)->has_failed = true;
  static_cast<UcxPeer*>(peer)->net->unsettled_ = true;
}

// UCX calls back from progress(), never out of the call that began it; of a receive that is
// withdrawn, out of that.
void UcxBackend::on_moved(UcxBackend& net, void* request, ucs_status_t status) noexcept {
  net.end_moved(net.release(request), status);
}

NetOp& UcxBackend::release(void* request) noexcept {
  auto& op = *static_cast<NetOp*>(static_cast<UcxRequest*>(request)->op);
  worker_.free(request);
  --under_way_;
  return op;
}

void UcxBackend::hold(ucs_status_ptr_t request, NetOp& op) noexcept {
  if (UCS_PTR_IS_PTR(request)) {
    static_cast<UcxRequest*>(request)->op = &op;
    ++under_way_;
  } else {
    end_moved(op, UCS_PTR_STATUS(request));
  }
}

void UcxBackend::end_moved(NetOp& op, ucs_status_t status) noexcept {
  if (status == UCS_OK) {
    end(op, NetOp::End::kDone);
    return;
  }
  UcxPeer& peer = peers_[op.request.peer];
  peer.has_failed = true;
  unsettled_ = true;
  op.failed_rank = peer.failed_rank.value_or(peer.rank);
  end(op, NetOp::End::kPeerLost);
}

void UcxBackend::end(NetOp& op, NetOp::End how) noexcept {
  op.end = how;
  ++ended_;
  --waited_for_;
  loop_.post(op.resume);
}

void UcxBackend::break_all(std::uint32_t failed_rank) noexcept {
  for (UcxPeer& peer : peers_) {
    lose(peer, failed_rank);
    say_farewell(peer, Kind::kAbort, std::min(failed_rank, UcxTag::kValuesMax - 1));
  }
  unsettled_ = true;
  if (!linger_.armed()) {
    loop_.arm(linger_, loop_.now() + options_.linger);
  }
}

void UcxBackend::lose(UcxPeer& peer, std::uint32_t failed_rank) noexcept {
  fail_waiting(peer, failed_rank);
  drop_arrived(peer);
}

void UcxBackend::drop_arrived(UcxPeer& peer) noexcept {
  for (auto& [number, channel] : peer.channels) {
    for (const UcxMessage& message : std::exchange(channel.arrived, {})) {
      worker_.drop(message.handle);
    }
  }
}

// The first cause counts.
void UcxBackend::fail_waiting(UcxPeer& peer, std::uint32_t failed_rank) noexcept {
  if (peer.failed_rank) {
    return;
  }
  peer.failed_rank = failed_rank;
  for (auto& [number, channel] : peer.channels) {
    const auto fail = [&](NetOp& op) {
      op.failed_rank = failed_rank;
      end(op, NetOp::End::kPeerLost);
    };
    for (NetOp* op : std::exchange(channel.sends, {})) {
      fail(*op);
    }
    for (const UcxPosted& posted : std::exchange(channel.posted, {})) {
      if (withdraw(posted)) {
        fail(*posted.op);
      }
    }
  }
}

// Deals with what UCX's callbacks said, and with peers from which nothing comes any more.
void UcxBackend::settle() noexcept {
  if (!std::exchange(unsettled_, false)) {
    return;
  }
  for (UcxPeer& peer : peers_) {
    if (peer.has_failed && !peer.said_farewell) {
      peer.said_farewell = true;
      lose(peer, peer.rank);
    }
    peer.was_told |= peer.has_failed;
    if (peer.said_farewell && peer.was_told) {
      close(peer);
    }
  }
}

// Operations that are under way with the peer end.
void UcxBackend::close(UcxPeer& peer) noexcept {
  if (ucp_ep_h endpoint = std::exchange(peer.endpoint, nullptr); endpoint != nullptr) {
    worker_.close_by_force(endpoint);
  }
}

void UcxBackend::close_all() noexcept {
  for (UcxPeer& peer : peers_) {
    drop_arrived(peer);
    close(peer);
  }
}

}  // namespace tandem::detail
