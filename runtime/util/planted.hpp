// runtime/util/planted.hpp — bugs planted on purpose, to show that the simulator finds them.
//
// `if (planted(Bug::kX))` is constant false, so nothing is left of it in the product. Only the
// libraries that are compiled with TANDEM_PLANTED_BUGS, for the simulator's test binary, can switch
// one on (before any rank runs).
#pragma once

#include <cstdint>

namespace tandem {

enum class Bug : std::uint8_t {
  kNone,
  kLostWakeUp,          // mailbox: a message arrives while the actor waits, and is not woken
  kDoubleResume,        // event: set() posts a waiter that its stop posted already
  kCreditLeak,          // mailbox: a returned message keeps its credit
  kLateReplyDelivered,  // ask table: an answer does not look at its ask's generation
  kCollectiveOrder,     // collectives: an operation is issued when it comes, not in its turn
  kUseAfterCancel,      // net: a cancelled receive still gets the next frame
  kDroppedOnClose,      // mailbox: close() loses what was accepted
  kReturnedTwice,    // mailbox: an ask comes back undelivered at the end, and its answer is pending
                     // once more
  kTimerFiresTwice,  // timers: a due timer stays in the heap
  kTimerNotDisarmed,       // ask: the deadline's timer stays armed after the answer
  kSlotReleasedTwice,      // gradient bucket: the slot goes back before the reduction and after it
  kReduceInArrivalOrder,   // ranks' contributions are added as they come
  kStopNotTold,            // stop token: the second callback linked is not told
  kJoinTooEarly,           // scope: the end of any task is taken for the end of all
  kPendingReplyUnlinked,   // mailbox: a promised answer is not failed when the actor ends
  kShortReadTakenAsWhole,  // files: a short transfer counts as a whole one
  kNoSpaceIgnored,         // files: ENOSPC is taken for success
  kEventBeforeCopy,        // device: an event fires before the copy ahead of it is done
  kChunkSkipped,           // pool: the last chunk of a job is not run
  kResidentTooOld,         // slots: an older version of a unit counts as resident
  kFilesNotSynced,         // checkpoint: its files are closed without fsync
  kNameBeforeEntries,      // checkpoint: the folder gets its name before its entries are synced
  kCommitNotSynced,        // checkpoint: commit() ends before the name is on the medium
  kRemovalNotSynced,  // checkpoint: files of an older one go before its name is gone for certain
  kSleepsUnseen,      // loop: it sleeps without telling those who post
  kStageLentTwice,    // state in a file: a slice gets the stage that another one is in
  kGroupNumberKept,   // group of ranks: a failed rank has its number in the group
  kGroupWaitUnsaid,   // group of ranks: for whom a rank waits there is not said to the others
  kCount,
};

#ifdef TANDEM_PLANTED_BUGS
inline Bug g_planted_bug = Bug::kNone;
[[nodiscard]] inline bool planted(Bug bug) noexcept { return g_planted_bug == bug; }
#else
[[nodiscard]] constexpr bool planted(Bug) noexcept { return false; }
#endif

}  // namespace tandem
