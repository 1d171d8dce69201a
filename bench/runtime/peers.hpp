// bench/runtime/peers.hpp — the libraries that the runtime is compared with, in the same binary and the same run.
//
// A benchmark is called CASE/LIBRARY; what has the same CASE is compared in the closing table. Peers are registered by
// --compare. A library that was not found when this was built is replaced by a file that says so.
#pragma once

#include <cstdint>

namespace tandem::bench {

inline constexpr std::int64_t kRound = 100'000;   // operations per iteration of a benchmark
inline constexpr std::int64_t kFarRound = 5'000;  // the same across threads

inline constexpr const char* kPingPong = "RB1a ping-pong, same loop";
inline constexpr const char* kPingPongFar = "RB1b ping-pong, two loops, blocking";
inline constexpr const char* kMailbox = "RB2 mailbox, senders";
inline constexpr const char* kCall = "RB3 call";
inline constexpr const char* kSwitch = "RB3 switch, local";
inline constexpr const char* kSpawn = "RB3 spawn and join";
inline constexpr const char* kAsk = "RB4 ask with a deadline, same loop";

/// Ours: RB1-RB4, and RB5-RB6.
void register_runtime();
void register_latency();

void register_asio();
/// False: this was built without CAF.
bool register_caf();

}  // namespace tandem::bench
