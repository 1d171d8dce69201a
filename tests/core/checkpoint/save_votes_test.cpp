// The votes of a save: each passes once, one that has passed counts though another rank fails then,
// and after a failure none passes.
#include "engine/checkpoint/save_votes.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/event_loop.hpp"
#include "runtime/scope.hpp"

namespace tandem {
namespace {

using Votes = std::vector<SavePhase>;

/// Saves until a vote is refused; writes down the votes that have passed, and what they brought.
Task<> save(SaveVotes* votes, std::vector<std::string>* log) {
  SavePhase last = SavePhase::kFailed;
  try {
    for (const SavePhase vote : {SavePhase::kHashed, SavePhase::kSealed, SavePhase::kNamed}) {
      const std::vector<std::string> said = co_await votes->all_have(vote, "mine");
      log->push_back(said.empty() ? "passed" : said.front());
    }
    last = SavePhase::kDone;
  } catch (const SaveVotes::Refused&) {
    log->emplace_back("refused");
  }
  votes->end(last);
}

template <class Train>
std::vector<std::string> log_of(Train train) {
  EventLoop loop({.name = "votes"});
  SaveVotes votes;
  std::vector<std::string> log;
  loop.run(
      [](EventLoop* on, SaveVotes* its, std::vector<std::string>* into, Train with) -> Task<> {
        Scope scope(*on);
        scope.spawn("save", &save, its, into);
        co_await with(its, into);
        co_await scope.join();
      },
      &loop, &votes, &log, train);
  return log;
}

TEST(SaveVotes, AreUnanimousAtOneVoteAlone) {
  EXPECT_TRUE(SaveVotes::is_unanimous(Votes{SavePhase::kSealed, SavePhase::kSealed}));
  EXPECT_FALSE(SaveVotes::is_unanimous(Votes{SavePhase::kSealed, SavePhase::kHashed}));
  EXPECT_FALSE(SaveVotes::is_unanimous(Votes{SavePhase::kSealed, SavePhase::kWorking}));
  for (const SavePhase phase :
       {SavePhase::kIdle, SavePhase::kWorking, SavePhase::kDone, SavePhase::kFailed}) {
    EXPECT_FALSE(SaveVotes::is_unanimous(Votes{phase, phase}));
  }
}

TEST(SaveVotes, PassOneAfterTheOther) {
  const auto log = log_of([](SaveVotes* votes, std::vector<std::string>* into) -> Task<> {
    co_await votes->rests();
    EXPECT_EQ(votes->phase(), SavePhase::kHashed);
    EXPECT_EQ(votes->says(), "mine");
    votes->pass({"of all"});
    EXPECT_EQ(votes->phase(), SavePhase::kWorking) << "the next exchange counts no vote";
    EXPECT_FALSE(votes->rests().is_set());
    for (const SavePhase vote : {SavePhase::kSealed, SavePhase::kNamed}) {
      co_await votes->rests();
      EXPECT_EQ(votes->phase(), vote);
      votes->pass({});
      EXPECT_EQ(votes->last_passed(), vote);
    }
    co_await votes->rests();
    EXPECT_EQ(votes->phase(), SavePhase::kDone);
    EXPECT_EQ(into->size(), 3U);
  });
  EXPECT_EQ(log, (std::vector<std::string>{"of all", "passed", "passed"}));
}

// Another disk may have given its name by then: whether the vote counts must not depend on when
// this rank comes to run.
TEST(SaveVotes, OneThatHasPassedCountsThoughAnotherRankFailsThen) {
  const auto log = log_of([](SaveVotes* votes, std::vector<std::string>* into) -> Task<> {
    co_await votes->rests();
    votes->pass({"of all"});
    EXPECT_TRUE(into->empty()) << "the save has not run yet";
    co_await votes->refuse();
    EXPECT_EQ(votes->phase(), SavePhase::kFailed);
  });
  EXPECT_EQ(log, (std::vector<std::string>{"of all", "refused"}));
}

}  // namespace
}  // namespace tandem
