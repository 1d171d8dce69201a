#include "tests/sim/group_rank.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "runtime/sleep.hpp"
#include "tests/support/reduction_reference.hpp"

namespace tandem::sim_test {
namespace {

using std::chrono::microseconds;

constexpr std::size_t kSlots = 2;  // visits that gathers run ahead

float first_weight(std::size_t layer, std::size_t i) {
  const std::uint32_t bits = test::mixed(static_cast<std::uint32_t>(i + 7919 * layer));
  return 0.5F + static_cast<float>(bits % 1024) / 2048;
}

/// Returns a value of a group's row at the start.
float first_value(std::uint32_t group, std::size_t token, std::size_t head) {
  const std::uint32_t bits =
      test::mixed(static_cast<std::uint32_t>(head + 31 * token) + 104729 * group);
  return static_cast<float>(static_cast<std::int32_t>(bits % 4096) - 2048) / 300;
}

/// Multiplies values [tokens][heads], of all heads, by their weights.
void weigh(std::vector<float>& values, std::size_t heads, const float* weights, std::size_t count) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] *= weights[i % heads % count];
  }
}

/// Adds to each token's value half of the one before it, in each head along the row.
void attend(std::vector<float>& rows, std::size_t heads) {
  for (std::size_t i = heads; i < rows.size(); ++i) {
    rows[i] += 0.5F * rows[i - heads];
  }
}

/// Returns each weight's gradient from the values of some tokens, [tokens][heads].
std::vector<float> gradient_of(const float* values, std::size_t tokens, std::size_t heads,
                               std::size_t weights) {
  std::vector<float> sum(weights);
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t i = 0; i < weights; ++i) {
      sum[i] += values[t * heads + i % heads] / static_cast<float>(1 + i % 5);
    }
  }
  return sum;
}

/// Each bit of the sum counts, and weights stay what they are like.
void update(float& weight, float sum) {
  weight = 0.5F + std::fabs(std::remainder(weight + sum, 1.0F));
}

/// Neighbours first, as ReduceArguments::tree adds.
std::vector<float> tree_of(const std::vector<std::vector<float>>& nodes, std::size_t first,
                           std::size_t count) {
  if (count == 1) {
    return nodes[first];
  }
  std::vector<float> sum = tree_of(nodes, first, count / 2);
  const std::vector<float> right = tree_of(nodes, first + count / 2, count / 2);
  std::ranges::transform(sum, right, sum.begin(), std::plus());
  return sum;
}

HostsBackend::Options options_of(Duration timeout, std::shared_ptr<GroupWaits> group_waits) {
  return {.piece_bytes = kNormTile * sizeof(float),
          .frame_bytes = 600,
          .waits = {.timeout = timeout,
                    .heartbeat = GroupRank::kHeartbeat,
                    .group_waits = std::move(group_waits)}};
}

std::vector<std::uint32_t> members_of(const GroupsPlan& plan, std::uint32_t rank) {
  std::vector<std::uint32_t> members(plan.group);
  std::iota(members.begin(), members.end(), rank / plan.group * plan.group);
  return members;
}

const std::byte* bytes_of(const std::vector<float>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}
std::byte* bytes_of(std::vector<float>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

}  // namespace

Weights group_reference(const GroupsPlan& plan) {
  Weights weights(plan.layers, std::vector<float>(plan.weights()));
  for (std::size_t l = 0; l < plan.layers; ++l) {
    for (std::size_t i = 0; i < plan.weights(); ++i) {
      weights[l][i] = first_weight(l, i);
    }
  }
  const std::size_t heads = plan.all_heads();
  for (std::size_t step = 0; step < plan.steps; ++step) {
    std::vector<std::vector<std::vector<float>>> nodes(plan.layers);  // [layer][rank]
    for (std::uint32_t group = 0; group < plan.groups(); ++group) {
      std::vector<float> row(plan.group * plan.own * heads);
      for (std::size_t i = 0; i < row.size(); ++i) {
        row[i] = first_value(group, i / heads, i % heads);
      }
      for (std::size_t l = 0; l < plan.layers; ++l) {
        weigh(row, heads, weights[l].data(), plan.weights());
        attend(row, heads);
        for (std::uint32_t place = 0; place < plan.group; ++place) {
          nodes[l].push_back(
              gradient_of(row.data() + place * plan.own * heads, plan.own, heads, plan.weights()));
        }
      }
    }
    for (std::size_t l = 0; l < plan.layers; ++l) {
      std::vector<float> sum = tree_of(nodes[l], 0, plan.tree());
      for (std::uint32_t rank = plan.tree(); rank < plan.ranks(); rank += plan.tree()) {
        const std::vector<float> next = tree_of(nodes[l], rank, plan.tree());
        std::ranges::transform(sum, next, sum.begin(), std::plus());
      }
      for (std::size_t i = 0; i < sum.size(); ++i) {
        update(weights[l][i], sum[i]);
      }
    }
  }
  return weights;
}

GroupRank::GroupRank(Run& run, const GroupsPlan& plan, std::uint32_t number, Places places)
    : rank(number),
      scope(run.world.loop(number), Name("main")),
      run_(run),
      plan_(plan),
      random_(run.random.fork("rank").fork(number)),
      workers_(run.world, number, {.threads = 1, .chunk_time = microseconds(1 + random_.below(9))}),
      pool_(run.world.loop(number), {.threads = 1, .driver = &workers_}),
      run_waits_(std::make_shared<RunWaits>()),
      group_waits_(std::make_shared<GroupWaits>(run_waits_, members_of(plan, number))),
      net_(places.links.attach(number)),
      local_(places.host.attach(number, pool_, {.run = run_waits_})),
      backend_(*local_, net_, pool_, options_of(kTimeout, nullptr)),
      group_net_(places.group_links.attach(number % plan.group)),
      group_local_(places.group_host.attach(number % plan.group, pool_, {.group = group_waits_})),
      group_(std::make_unique<HostsBackend>(*group_local_, group_net_, pool_,
                                            options_of(plan.group_timeout, group_waits_)),
             group_waits_),
      slots_(kSlots, std::vector<float>(plan.weights())),
      gradients_(plan.layers) {
  run.watched.push_back(&scope);
  for (std::size_t l = 0; l < plan.layers; ++l) {
    shards.emplace_back();
    for (std::size_t i = 0; i < plan.shard; ++i) {
      shards[l].push_back(first_weight(l, number * plan.shard + i));
    }
  }
}

void GroupRank::start(Misdeed misdeed, std::size_t at_visit) {
  misdeed_ = misdeed;
  misdeed_visit_ = at_visit;
  scope.spawn("collectives", &GroupRank::collect, this);
  scope.spawn("lane", &GroupRank::compute, this);
}

// ---- the collectives of all ranks ----
Task<> GroupRank::collect(GroupRank* self) {
  try {
    co_await with_scope(
        [](Scope& both, GroupRank* of) -> Task<> {
          of->collecting_ = &both;
          both.spawn("gathers", &GroupRank::gather, of);
          both.spawn("reductions", &GroupRank::reduce, of);
          co_return;
        },
        self);
  } catch (...) {
    self->failed(std::current_exception());
    self->collectives_failed_ = true;
    self->gathered_.advance();  // a lane that waits for weights waits for nothing more
  }
  self->collecting_ = nullptr;
  self->end_task();
}

Task<> GroupRank::gather() {
  for (std::size_t v = 0; v < plan_.steps * plan_.visits(); ++v) {
    const std::size_t step = v / plan_.visits();
    const std::size_t at = v % plan_.visits();
    const std::size_t layer = at < plan_.layers ? at : plan_.visits() - 1 - at;
    co_await reduced_.reach(step == 0 ? 0 : step * plan_.layers - layer);
    co_await used_.reach(v < kSlots ? 0 : v + 1 - kSlots);
    co_await backend_.all_gather({bytes_of(std::as_const(shards[layer])),
                                  bytes_of(slots_[v % kSlots]), plan_.shard * sizeof(float)});
    gathered_.advance();
  }
}

Task<> GroupRank::reduce() {
  for (std::size_t i = 0; i < plan_.steps * plan_.layers; ++i) {
    const std::size_t layer = plan_.layers - 1 - i % plan_.layers;
    std::vector<float> sum(plan_.shard);
    co_await made_.reach(i + 1);
    (void)co_await backend_.reduce_scatter_add({.block = bytes_of(std::as_const(gradients_[layer])),
                                                .accumulator = sum.data(),
                                                .shard_elements = plan_.shard,
                                                .tree = plan_.tree()});
    for (std::size_t j = 0; j < plan_.shard; ++j) {
      update(shards[layer][j], sum[j]);
    }
    reduced_.advance();
  }
}

// ---- the lane ----
Task<> GroupRank::compute(GroupRank* self) {
  const GroupsPlan& plan = self->plan_;
  try {
    for (std::size_t step = 0; step < plan.steps; ++step) {
      std::vector<std::vector<float>> inputs(plan.layers + 1);  // [layer][token]
      for (std::size_t i = 0; i < plan.own * plan.all_heads(); ++i) {
        inputs[0].push_back(first_value(self->rank / plan.group,
                                        self->rank % plan.group * plan.own + i / plan.all_heads(),
                                        i % plan.all_heads()));
      }
      for (std::size_t v = 0; v < plan.visits(); ++v) {
        co_await self->visit(step * plan.visits() + v, &inputs);
      }
    }
  } catch (...) {
    self->failed(std::current_exception());
    self->backend_.fail(*self->failed_rank, self->failure);
    if (self->collecting_ != nullptr) {
      self->collecting_->request_stop();
    }
  }
  self->end_task();
}

Task<> GroupRank::visit(std::size_t number, std::vector<std::vector<float>>* inputs) {
  const std::size_t at = number % plan_.visits();
  const bool is_forward = at < plan_.layers;
  const std::size_t layer = is_forward ? at : plan_.visits() - 1 - at;
  const std::size_t heads = plan_.all_heads();
  co_await gathered_.reach(number + 1);
  if (collectives_failed_) {
    throw PeerLost(failure, *failed_rank);
  }
  co_await sleep_for(microseconds(random_.between(0, 30)));
  if (number == misdeed_visit_ && misdeed_ != Misdeed::kNone) {
    co_await misbehave();
  }
  std::vector<float> values = (*inputs)[layer];
  weigh(values, heads, slots_[number % kSlots].data(), plan_.weights());
  std::vector<float> by_rank, rows(values.size());
  for (std::uint32_t to = 0; to < plan_.group; ++to) {
    for (std::size_t t = 0; t < plan_.own; ++t) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(t * heads + to * plan_.heads);
      by_rank.insert(by_rank.end(), begin, begin + static_cast<std::ptrdiff_t>(plan_.heads));
    }
  }
  co_await exchange(&by_rank, &rows);
  attend(rows, plan_.heads);
  co_await exchange(&rows, &by_rank);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t t = i / heads;
    const std::size_t head = i % heads;
    values[i] = by_rank[(head / plan_.heads * plan_.own + t) * plan_.heads + head % plan_.heads];
  }
  if (is_forward) {
    (*inputs)[layer + 1] = std::move(values);
  } else {
    run_.require(values == (*inputs)[layer + 1], "rank {}: backward computes another row", rank);
    gradients_[layer] = gradient_of(values.data(), plan_.own, heads, plan_.weights());
    made_.advance();
  }
  used_.advance();
}

Task<> GroupRank::misbehave() {
  misdeed_at = EventLoop::current().now();
  switch (misdeed_) {
    case Misdeed::kGivesUp:
      throw Error(ExitCode::kFailure, "[test] it has enough");
    case Misdeed::kIsStopped:
      run_.world.after(Duration(0), rank, [this] { run_.world.pause(rank, kForEver); });
      co_await sleep_for(microseconds(10));  // it gets there afterwards
      co_return;
    default:
      co_await sleep_for(kForEver);
  }
}

Task<> GroupRank::exchange(std::vector<float>* from, std::vector<float>* into) {
  return group_.all_to_all({.from = bytes_of(std::as_const(*from)),
                            .into = bytes_of(*into),
                            .bytes = plan_.own * plan_.heads * sizeof(float)});
}

// ---- the end ----
void GroupRank::failed(std::exception_ptr error) {
  if (failed_rank.has_value()) {
    return;
  }
  try {
    std::rethrow_exception(std::move(error));
  } catch (const PeerLost& lost) {
    failed_rank = lost.rank();
    failure = lost.what();
  } catch (const std::exception& other) {
    failed_rank = rank;
    failure = other.what();
  }
}

// As Rank::give_up(): no lane exchanges any more.
void GroupRank::end_task() {
  if (--tasks_ > 0) {
    return;
  }
  if (failed_rank.has_value()) {
    backend_.fail(*failed_rank, failure);
    group_.fail(*failed_rank, failure);
  }
  ended_at = EventLoop::current().now();
}

}  // namespace tandem::sim_test
