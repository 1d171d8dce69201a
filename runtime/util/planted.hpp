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
  kLostWakeUp,          // mailbox: a message arrives while the actor waits, and does not wake it
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
  kHashedBeforeWritten,    // checkpoint: files are hashed while other ranks still write them
  kNamedBeforeSealed,      // checkpoint: a disk's folder gets its name before all disks are sealed
  kVoteCountedTwice,       // checkpoint: a vote passes again while the ranks work
  kRemovalNotSynced,  // checkpoint: files of an older one go before its name is gone for certain
  kSleepsUnseen,      // loop: it sleeps without telling those who post
  kStageLentTwice,    // state in a file: a slice gets the stage that another one is in
  kGroupNumberKept,   // group of ranks: a failed rank has its number in the group
  kGroupWaitUnsaid,   // group of ranks: the others are not told for whom a rank waits there
  kSlotFreedBeforeVisit,     // step: a visit's slots are given back before it has run
  kVerdictBeforeReductions,  // step: the norm is made while gradients are still being reduced
  kConstantsSetEarly,        // step: constants of updates ahead of the verdict are set at its begin
  kConstantsNotAwaited,      // step: constants are set while updates of the step before read them
  kRollbackForgotten,        // step: updates ahead of a verdict that skips the step stay
  kVersionKept,              // step: updates make the version of weights that is there already
  kReductionOrderKept,       // step: two reductions have one number
  kGradientTicketsKept,      // step: gradient slots are asked for with the step before's tickets
  kFirstGradientAdded,       // step: the first micro-batch adds to the step before's gradient
  kOldWeightsGathered,       // gatherer: a pass takes the weights of the step before
  kGatherOrderKept,          // gatherer: two passes number their gathers alike
  kPaddingKept,              // gradient bucket: the padding of a slot is not cleared
  kRedoForgotten,            // optimizer: updates ahead of a verdict that clips count as they are
  kShadowCommittedTwice,     // optimizer: an update ahead of its verdict is swapped in twice
  kBoundaryFreedEarly,       // boundaries: one is freed while it is copied away
  kBoundaryTakenEarly,       // boundaries: one is used while it is copied back
  kBoundaryRoomShared,       // boundaries: two that come back one after the other have one memory
  kGatherFailureUnsaid,      // gatherer: a visit waits on for a unit whose gather has failed
  kBoundaryFailureLost,      // boundaries: one whose copy has failed is used
  kUpdatesNotDrained,        // rank: it ends while updates are under way
  kCauseHidden,              // rank: what it says is what its actors' end has caused
  kCount,
};

#ifdef TANDEM_PLANTED_BUGS
inline Bug g_planted_bug = Bug::kNone;
[[nodiscard]] inline bool planted(Bug bug) noexcept { return g_planted_bug == bug; }
#else
[[nodiscard]] constexpr bool planted(Bug) noexcept { return false; }
#endif

}  // namespace tandem
