// The flight recorder: what is read is what was recorded, also by a process that was killed; and
// who waits for whom.
#include "runtime/flight.hpp"

#include <csignal>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tandem::flight {
namespace {

using ::testing::HasSubstr;

Entry at(Kind what, std::uint64_t number, Edge edge, std::int64_t time_ns = 0) {
  return {.what = what, .edge = edge, .number = number, .time_ns = time_ns};
}

TEST(Flight, TheNewestEntriesAreKeptInOrder) {
  const auto ring = std::make_unique<Ring>();
  EXPECT_TRUE(ring->entries().empty());
  const std::uint64_t count = Ring::kSlots + 100;
  for (std::uint64_t number = 0; number < count; ++number) {
    ring->record({.what = Kind::kReduceScatter,
                  .edge = Edge::kEnds,
                  .group = 3,
                  .unit = 7,
                  .number = number,
                  .bytes = 4 << 20,
                  .time_ns = static_cast<std::int64_t>(number)});
  }
  const std::vector<Entry> kept = ring->entries();
  ASSERT_EQ(kept.size(), Ring::kSlots);
  EXPECT_EQ(kept.front().number, 100U);
  const Entry& last = kept.back();
  EXPECT_EQ(last.number, count - 1);
  EXPECT_EQ(last.what, Kind::kReduceScatter);
  EXPECT_EQ(last.edge, Edge::kEnds);
  EXPECT_EQ(last.group, 3U);
  EXPECT_EQ(last.unit, 7U);
  EXPECT_EQ(last.bytes, 4U << 20);
  EXPECT_EQ(last.time_ns, static_cast<std::int64_t>(count - 1));
  EXPECT_EQ(ring->entries(5).size(), 5U);
  EXPECT_EQ(last.text(), "reduce-scatter 4195 (unit 7, 4.0 MiB)");
}

TEST(Flight, ThreadsRecordAtOnceAndAReaderSeesWholeEntries) {
  const auto ring = std::make_unique<Ring>();
  constexpr std::uint64_t kEach = 50'000;
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 1; thread <= 3; ++thread) {
    threads.emplace_back([&ring, thread] {
      for (std::uint64_t i = 0; i < kEach; ++i) {
        ring->record({.what = Kind::kAllGather, .number = thread * i, .bytes = thread});
      }
    });
  }
  for (int look = 0; look < 100; ++look) {
    for (const Entry& entry : ring->entries()) {
      ASSERT_TRUE(entry.bytes >= 1 && entry.bytes <= 3);
      ASSERT_EQ(entry.number % entry.bytes, 0U);
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(ring->next.load(), 3 * kEach);
  // Each switch of threads inside record() may have cost an entry of the last round.
  EXPECT_GE(ring->entries().size(), Ring::kSlots / 2);
  EXPECT_LE(ring->entries().size(), Ring::kSlots);
  for (std::uint64_t i = 0; i < Ring::kSlots; ++i) {
    ring->record({.what = Kind::kAllGather, .number = i});
  }
  EXPECT_EQ(ring->entries().size(), Ring::kSlots);  // and none of a later one
}

TEST(Flight, ASlotThatIsBeingWrittenBelongsToItsWriter) {
  const auto ring = std::make_unique<Ring>();
  ring->record(at(Kind::kAllGather, 1, Edge::kBegins));
  // As a thread leaves it that stands still in slot 1 ...
  ring->next.fetch_add(1);
  ring->slot[1].sequence = 2 | Ring::kBeingWritten;
  for (std::uint64_t i = 2; i < Ring::kSlots + 5; ++i) {
    ring->record(at(Kind::kAllGather, i, Edge::kBegins));
  }
  EXPECT_EQ(ring->slot[1].sequence.load(), 2 | Ring::kBeingWritten);
  EXPECT_EQ(ring->entries().size(), Ring::kSlots - 1);
  // ... and as one meets it that comes a round late: a newer entry stays.
  ring->next = 3;
  ring->record(at(Kind::kAllGather, 99, Edge::kBegins));
  ring->next = Ring::kSlots + 5;
  EXPECT_EQ(ring->slot[3].sequence.load(), Ring::kSlots + 4);
  EXPECT_EQ(ring->slot[3].number.load(), Ring::kSlots + 3);
}

TEST(Flight, ARingOutlivesItsProcess) {
  const int file = make_ring_file();
  const Ring* ring = map_ring(file);
  ASSERT_NE(ring, nullptr);
  const pid_t process = ::fork();
  if (process == 0) {
    Ring* mine = map_ring(file);
    mine->record(at(Kind::kAllGather, 811, Edge::kBegins));
    (void)::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(process, &status, 0), process);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_EQ(ring->entries().size(), 1U);
  EXPECT_EQ(ring->entries()[0].number, 811U);
  ::close(file);
}

// A process that maps a ring that was cut short would end by SIGBUS.
TEST(Flight, ARingCannotBeCutShort) {
  const int file = make_ring_file();
  EXPECT_EQ(::ftruncate(file, 0), -1);
  EXPECT_EQ(::ftruncate(file, sizeof(Ring) + 1), -1);
  const int unsealed = ::memfd_create("ring", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(unsealed, sizeof(Ring)), 0);
  const auto made = std::make_unique<Ring>();
  ASSERT_EQ(::pwrite(unsealed, made.get(), sizeof(Ring), 0), static_cast<ssize_t>(sizeof(Ring)));
  EXPECT_EQ(map_ring(unsealed), nullptr);
  ::close(unsealed);
  ::close(file);
}

// A rank may write anything into its ring.
TEST(Flight, TimesOfAnotherAgeOverflowNothing) {
  for (const std::int64_t time_ns : {INT64_MIN, INT64_MAX}) {
    const std::vector<Entry> entries = {
        {.what = Kind::kAllGather, .edge = Edge::kBegins, .number = 1, .time_ns = time_ns}};
    const std::int64_t other_end_ns = ~time_ns;
    EXPECT_FALSE(describe(entries, other_end_ns).empty());
    EXPECT_FALSE(last_of(entries, other_end_ns).empty());
    EXPECT_TRUE(explain({entries, {}}, other_end_ns).has_value());
  }
}

TEST(Flight, AnotherFileIsNoRing) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(map_ring(ends[0]), nullptr);
  EXPECT_EQ(map_ring(-1), nullptr);
  ::close(ends[0]);
  ::close(ends[1]);
}

constexpr std::int64_t kS = 1'000'000'000;

TEST(Flight, ARankThatNeverCameIsExplained) {
  const std::vector<Entry> waits = {at(Kind::kAllGather, 5, Edge::kBegins, 1 * kS),
                                    at(Kind::kAllGather, 5, Edge::kEnds, 1 * kS),
                                    at(Kind::kReduceScatter, 812, Edge::kBegins, 2 * kS)};
  const std::vector<Entry> absent = {at(Kind::kReduceScatter, 811, Edge::kBegins, 1 * kS),
                                     at(Kind::kReduceScatter, 811, Edge::kEnds, 2 * kS)};
  const auto found = explain({waits, waits, absent}, 43 * kS);
  ASSERT_TRUE(found);
  EXPECT_THAT(found->absent, ::testing::ElementsAre(2U));
  EXPECT_EQ(found->text,
            "rank 2 never entered reduce-scatter 812 (its last: reduce-scatter 811 ended 41.0 s "
            "ago); ranks 0, 1 wait in it since 41.0 s");
}

TEST(Flight, ARankThatStaysInAnOperationThatOthersGaveUpIsExplained) {
  const Entry begins = at(Kind::kNorm, 9, Edge::kBegins, 2 * kS);
  const Entry fails = at(Kind::kNorm, 9, Edge::kFails, 8 * kS);
  const auto found = explain({{begins, fails}, {begins}, {begins, fails}}, 9 * kS);
  ASSERT_TRUE(found);
  EXPECT_THAT(found->absent, ::testing::ElementsAre(1U));
  EXPECT_EQ(found->text, "rank 1 began norm 9 7.0 s ago and did not go on; the others gave up");
  EXPECT_EQ(explain({{begins, fails}, {begins, fails}}, 9 * kS)->text,
            "ranks 0, 1 did not end norm 9, begun 7.0 s ago");
}

TEST(Flight, TheLastBlameCounts) {
  const Entry first = at(Kind::kBlame, 2, Edge::kBegins, 1 * kS);
  const Entry last = at(Kind::kBlame, 3, Edge::kBegins, 2 * kS);
  const Entry gather = at(Kind::kAllGather, 7, Edge::kFails, 1 * kS);
  EXPECT_EQ(blamed_by({gather, first, last, gather}), 3U);
  EXPECT_EQ(blamed_by({gather}), std::nullopt);
  EXPECT_EQ(last.text(), "blame of rank 3");
  // It is no operation of its own.
  EXPECT_EQ(last_of({gather, last}, 3 * kS), "its last: all-gather 7 failed 2.0 s ago");
}

// Those who gave up have failed in it; that is where they waited.
TEST(Flight, AWaitThatWasGivenUpCountsAndOtherGroupsDoNot) {
  Entry of_experts = at(Kind::kAllGather, 1, Edge::kBegins, 1 * kS);
  of_experts.group = 1;
  const std::vector<Entry> gave_up = {at(Kind::kExchange, 3, Edge::kBegins, 2 * kS),
                                      at(Kind::kExchange, 3, Edge::kFails, 3 * kS), of_experts};
  const auto found = explain({gave_up, {}}, 4 * kS);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->text,
            "rank 1 never entered exchange 3 (it had not begun anything); rank 0 waits "
            "in it since 2.0 s");
  EXPECT_FALSE(explain({{of_experts}, {}}, 4 * kS));
  EXPECT_FALSE(explain({{at(Kind::kLoad, 0, Edge::kBegins)}, {}}, 4 * kS));
}

}  // namespace
}  // namespace tandem::flight
