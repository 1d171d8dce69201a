// engine/checkpoint/save_votes.hpp — the votes of a save: a rank's save waits at each until the
// saves of all ranks have come there.
//
// The ranks learn each other's phases in the exchange that each step makes anyway, so a save adds
// no collective while training goes on. On each rank one task saves, and calls all_have() between
// its phases; another one trains, and after an exchange calls pass() or refuse().
// Invariant: a save goes on only when a vote has passed, and a vote passes once, on all ranks after
// the same exchange. When the save of any rank has failed, no vote passes any more.
// Thread rule: the loop's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/event.hpp"
#include "runtime/task.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

enum class SavePhase : std::uint8_t {
  kIdle,     // no save is under way
  kWorking,  // between two votes
  // The votes, in their order; each says that something is done on this rank.
  kAgreed,   // it knows its number for the save
  kMade,     // the files are there, in full size
  kWritten,  // its bytes are durable
  kHashed,   // its share of the files is hashed
  kSealed,   // everything is durable under a temporary name
  kNamed,    // the folder has its final name, durably
  // The ends.
  kDone,
  kFailed,
};

class SaveVotes {
 public:
  /// Ends a save after the save of another rank has failed.
  struct Refused {};

  // ---- for the task that saves

  /// Waits until the saves of all ranks have reached `phase`. Returns what each rank says, in rank
  /// order, if the vote carries texts. Throws Refused.
  Task<std::vector<std::string>> all_have(SavePhase phase, std::string says = {}) {
    says_ = std::move(says);
    rest(phase);
    co_await passed_;
    if (!std::exchange(has_passed_, false)) {
      throw Refused();
    }
    if (!refused_) {  // else the next vote is refused
      passed_.reset();
    }
    co_return std::move(received_);
  }
  /// The save has ended: kDone or kFailed.
  void end(SavePhase phase) {
    rest(phase);
    ended_.set();
  }

  // ---- for the task that trains

  [[nodiscard]] SavePhase phase() const noexcept { return phase_; }
  [[nodiscard]] const std::string& says() const noexcept { return says_; }
  [[nodiscard]] SavePhase last_passed() const noexcept { return last_passed_; }
  /// Set while the save waits at a vote, or has ended.
  [[nodiscard]] Event& rests() noexcept { return rests_; }

  /// Whether all ranks wait at the same vote. All ranks ask about the same phases.
  [[nodiscard]] static bool is_unanimous(std::span<const SavePhase> of_ranks) noexcept {
    return of_ranks.front() >= SavePhase::kAgreed && of_ranks.front() <= SavePhase::kNamed &&
           std::ranges::count(of_ranks, of_ranks.front()) == std::ssize(of_ranks);
  }
  /// Whether the vote carries the ranks' texts.
  [[nodiscard]] static bool has_texts(SavePhase vote) noexcept {
    return vote == SavePhase::kAgreed || vote == SavePhase::kHashed;
  }
  void pass(std::vector<std::string> texts) {
    last_passed_ = phase_;
    received_ = std::move(texts);
    if (!planted(Bug::kVoteCountedTwice)) {
      phase_ = SavePhase::kWorking;
    }
    rests_.reset();
    has_passed_ = true;
    passed_.set();
  }
  /// No vote passes any more; one that has passed still counts. Returns when the save has ended.
  Task<> refuse() {
    refused_ = true;
    passed_.set();
    co_await ended_;
  }

 private:
  void rest(SavePhase phase) {
    phase_ = phase;
    rests_.set();
  }

  SavePhase phase_ = SavePhase::kWorking;
  SavePhase last_passed_ = SavePhase::kIdle;
  std::string says_;
  std::vector<std::string> received_;
  bool has_passed_ = false;  // and all_have() has not returned yet
  bool refused_ = false;
  Event passed_;  // or refused
  Event rests_;
  Event ended_;
};

}  // namespace tandem
