#include "tests/sim/training_rank.hpp"

#include <algorithm>
#include <cmath>

#include "actors/kernels/update/state_memory.hpp"
#include "runtime/detail/mailbox/ask_table.hpp"
#include "runtime/sleep.hpp"

namespace tandem::sim_test {
namespace {

using std::chrono::microseconds;
constexpr std::size_t kDeviceBytes = std::size_t{1} << 23;

std::unique_ptr<Accelerator> make_device(const Plan& plan, EventLoop& loop, Random& random) {
  if (!plan.on_device) {
    return nullptr;
  }
  return std::make_unique<Accelerator>(std::make_unique<SimDevice>(
      loop, SimDevice::Options{.memory_bytes = kDeviceBytes,
                               .compute_flops_per_s = 1e9 + 1e9 * random.uniform(),
                               .memory_bytes_per_s = 1e9 + 1e9 * random.uniform(),
                               .to_device_bytes_per_s = 1e9,
                               .to_host_bytes_per_s = 1e9}));
}

/// Also sets `place` to it.
std::unique_ptr<FileBackend> make_files(SimWorld& world, std::uint32_t rank, SimDisk& disk,
                                        SimFiles::Faults faults, SimFiles*& place) {
  auto files = std::make_unique<SimFiles>(world, rank, disk, faults);
  place = files.get();
  return files;
}

RankShape shape_on(RankShape shape, const Accelerator* accelerator) {
  shape.device_bytes = accelerator != nullptr ? kDeviceBytes : 0;
  return shape;
}

}  // namespace

TrainingRank::TrainingRank(Run& run_in, const Plan& plan_in, const Reference& reference_in,
                           std::uint32_t rank_in, SimNet& links_in, SimHost& host, SimDisk& disk,
                           DiskFaults faults, CheckpointMeeting& meeting)
    : run(run_in),
      plan(plan_in),
      reference(reference_in),
      rank(rank_in),
      links(links_in),
      random(run.random.fork("rank").fork(rank)),
      loop(run.world.loop(rank)),
      main_scope(loop, Name("main")),
      optimizer_workers(run.world, rank,
                        {.threads = 2,
                         .chunk_time = microseconds(random.chance(0.3) ? 100 + random.below(700)
                                                                       : 5 + random.below(40))}),
      copy_workers(run.world, rank,
                   {.threads = 2, .chunk_time = microseconds(2 + random.below(20))}),
      optimizer_pool(loop, {.threads = 2, .driver = &optimizer_workers}),
      copy_pool(loop, {.threads = 2, .driver = &copy_workers}),
      lane(run.world, rank,
           {.job_time =
                microseconds(random.chance(0.3) ? 100 + random.below(900) : 5 + random.below(60))}),
      net(links_in.attach(rank)),
      io(loop, make_files(run.world, rank, disk, faults.of_files, files)),
      local(host.attach(rank, copy_pool)),
      over_hosts(*local, net, copy_pool, {.piece_bytes = kNormTile * sizeof(float)}),
      accelerator(make_device(plan, loop, random)),
      model(plan.model()),
      config(plan.config()),
      options(RankOptions::from(config, plan.engine, CorePlan())),
      layout(model, shape_on(options.shape, accelerator.get()), options.zero, plan.ranks, rank),
      prefetch({.pool = &copy_pool,
                .make =
                    [this](std::uint64_t i) {
                      i += first_step * plan.micro_steps;
                      return i < data.size() ? std::optional(static_cast<int>(data[i]))
                                             : std::nullopt;
                    }}),
      checkpoints(*this, meeting) {
  auto recording = std::make_unique<RecordingBackend>(over_hosts);
  recorded = recording.get();
  backend = accelerator ? accelerator->stage(std::move(recording)) : std::move(recording);
  training.emplace(layout, options,
                   RankParts{.loop = &loop,
                             .optimizer_pool = &optimizer_pool,
                             .copy_pool = &copy_pool,
                             .accelerator = accelerator.get(),
                             .backend = backend.get(),
                             .lane_driver = &lane,
                             .nvme_files = [this, &disk, faults] {
                               return make_files(run.world, rank, disk, faults.of_nvme, nvme_files);
                             }});
  run.watched.push_back(&main_scope);
  run.watched.push_back(&training->scope());
}

void TrainingRank::start() { main_scope.spawn("training", &TrainingRank::main, this); }

// Trains; whatever happens, the actors end, and the peers learn which rank failed.
Task<> TrainingRank::main(TrainingRank* self) {
  std::exception_ptr error;
  bool started = false;
  try {
    // No two processes begin at the same time: files of the run are named by it.
    co_await sleep_for(microseconds(7 * self->checkpoints.start_number()));
    co_await self->read_data();
    co_await self->training->start();
    started = true;
    self->step.emplace(*self->training);
    self->checkpoints.start();
    self->first_step = self->steps_done = co_await self->checkpoints.load();
    self->prefetch.start(self->training->scope());
    co_await self->train();
  } catch (...) {
    error = std::current_exception();
  }
  if (error != nullptr) {
    self->cause = self->training->cause_of(error);
    self->over_hosts.fail(self->failed_rank(), self->failure());
  }
  if (started) {
    const Scope& actors = self->training->scope();
    bool all_act = actors.failures().empty() && !actors.stop_requested();
    self->prefetch.close();
    co_await self->checkpoints.end();
    co_await self->training->end(error != nullptr);
    all_act = all_act && actors.failures().empty();
    if (error != nullptr && all_act && self->step) {
      co_await self->take_state_after_failure();
    }
  }
  self->ended_at = EventLoop::current().now();
}

Task<std::vector<std::byte>> TrainingRank::of_all_ranks(std::vector<std::byte> mine) {
  std::vector<std::byte> all(mine.size() * plan.ranks);
  for (std::size_t begin = 0; begin < mine.size(); begin += kExchangeBytes) {
    const auto piece =
        std::span(mine).subspan(begin, std::min(kExchangeBytes, mine.size() - begin));
    const std::vector<std::byte> pieces =
        co_await step->exchange(std::vector(piece.begin(), piece.end()));
    for (std::size_t r = 0; r < plan.ranks; ++r) {
      std::copy_n(pieces.data() + r * piece.size(), piece.size(),
                  all.data() + r * mine.size() + begin);
    }
  }
  co_return all;
}

Task<> TrainingRank::train() {
  while (steps_done < plan.steps) {
    co_await train_step();
    co_await checkpoints.after_step();
  }
  const std::optional<int> beyond = co_await prefetch.address().ask(NextBatch<int>{});
  run.require(!beyond, "rank {} got a batch beyond its data", rank);
  co_await step->drain();
  co_await take_end_state();
  // No rank leaves while others may still need what it sends.
  (void)co_await of_all_ranks({std::byte{1}});
}

Task<> TrainingRank::train_step() {
  run.world.note("step", rank, steps_done);
  const TrainStep::Update update = plan.update_after(reference.applied[steps_done]);
  step->begin(static_cast<std::int64_t>(steps_done) + 1, plan.micro_steps, update);
  for (std::uint64_t a = 0; a < plan.micro_steps; ++a) {
    const std::uint64_t number = steps_done * plan.micro_steps + a;
    const std::optional<int> batch = co_await prefetch.address().ask(NextBatch<int>{});
    run.require(batch == batch_of(number), "rank {} got batch {} for {}", rank, batch.value_or(-1),
                number);
    const MicroBatchId id{.step = steps_done, .number = a * plan.ranks + rank};
    co_await step->forward(std::make_shared<NumberBatch>(run, plan, reference, id, visits));
    co_await step->backward(plan.loss_gradient());
  }
  const std::vector<float> losses = co_await step->losses();
  for (std::uint64_t a = 0; a < plan.micro_steps; ++a) {
    run.require(losses[a] == loss_of({.step = steps_done, .number = a * plan.ranks + rank}),
                "rank {} read back loss {} of micro-step {}", rank, losses[a], a);
  }
  if (plan.shares_early) {
    (void)co_await of_all_ranks({std::byte{0}});
  }
  check_verdict(co_await step->finish(update));
  ++steps_done;
}

void TrainingRank::check_verdict(const Verdict& verdict) {
  const double expected = reference.norms[steps_done];
  const bool is_skipped = std::isnan(expected);
  run.require(is_skipped == (verdict.outcome == StepOutcome::kSkip),
              "rank {} skips step {}, or does not", rank, steps_done);
  run.require(is_skipped || verdict.norm.value == expected, "rank {} has the norm {} instead of {}",
              rank, verdict.norm.value, expected);
  if (is_skipped) {
    run.require(verdict.norm.bad_parameter == fmt::format("unit {}", plan.bad->unit),
                "rank {} blames {} for the step that is skipped", rank, verdict.norm.bad_parameter);
  }
}

Task<> TrainingRank::take_end_state() {
  for (std::size_t unit = 0; unit < plan.units(); ++unit) {
    const HostState state =
        co_await training->loader().state_of(unit, training->optimizer().state_of(unit).buffers);
    auto& arrays = end_state.emplace_back(3, std::vector<float>(layout.slice_elements(unit)));
    read_master(state.buffers, arrays[0].data(), 0, arrays[0].size());
    for (std::size_t k = 0; k < 2; ++k) {
      read_state(state.buffers, k, arrays[k + 1].data(), 0, arrays[k + 1].size());
    }
  }
}

Task<> TrainingRank::take_state_after_failure() {
  end_state.clear();
  try {
    co_await take_end_state();
  } catch (const Error&) {
    end_state.clear();  // the device or the disk that has it is what failed
  }
}

Task<> TrainingRank::read_data() {
  IoFile file = co_await io.open(fmt::format("data {}", rank), OpenMode::kRead);
  std::vector<std::byte> bytes(co_await io.size(file));
  const std::size_t got = co_await io.read(file, 0, bytes);
  run.require(got == bytes.size(), "rank {} read {} of {} bytes of data", rank, got, bytes.size());
  co_await io.close(std::move(file));
  data = std::move(bytes);
}

std::uint64_t TrainingRank::count_of(Operation operation) {
  switch (operation) {
    case Operation::kTurn:
      return run.world.turns(rank);
    case Operation::kVisit:
      return visits.made;
    case Operation::kKernel:
      return device() != nullptr ? device()->kernels() : 0;
    case Operation::kCopy:
      return device() != nullptr ? device()->copies() : 0;
    case Operation::kUpdateChunk:
      return optimizer_workers.chunks();
    case Operation::kCopyChunk:
      return copy_workers.chunks();
    case Operation::kCollective:
      return recorded->edges;
    case Operation::kFrame:
      return links.operations(rank);
    case Operation::kFileCall:
      return files->calls();
    case Operation::kNvmeCall:
      return nvme_files != nullptr ? nvme_files->calls() : 0;
    case Operation::kCount:
      break;
  }
  return 0;
}

void TrainingRank::fail(Operation operation, std::uint64_t n) {
  switch (operation) {
    case Operation::kVisit:
      visits.breaks_at = n;
      break;
    case Operation::kKernel:
      device()->fail_kernel(n);
      break;
    case Operation::kCopy:
      device()->fail_copy(n);
      break;
    case Operation::kUpdateChunk:
      optimizer_workers.fail_chunk(n);
      break;
    case Operation::kCopyChunk:
      copy_workers.fail_chunk(n);
      break;
    case Operation::kCollective:
      recorded->breaks_at = n;
      break;
    case Operation::kFrame:
      links.cut_at(rank, n);
      break;
    default:
      break;
  }
}

bool TrainingRank::is_quiet() {
  std::uint64_t waiting = loop.asks().pending() + lane.queued() + files->calls_under_way();
  waiting += nvme_files != nullptr ? nvme_files->calls_under_way() : 0;
  waiting += device() != nullptr && !device()->idle() ? 1 : 0;
  if (training->shards().empty()) {
    return waiting == 0;  // it failed before it made its actors
  }
  waiting += training->collectives().metrics().depth + training->optimizer().metrics().depth;
  for (std::size_t unit = 0; unit < training->shards().size(); ++unit) {
    waiting += training->shards()[unit]->metrics().depth;
    waiting += training->bucket(unit) != nullptr ? training->bucket(unit)->metrics().depth : 0;
  }
  return waiting == 0;
}

std::string TrainingRank::failure() const {
  try {
    if (cause != nullptr) {
      std::rethrow_exception(cause);
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

std::uint32_t TrainingRank::failed_rank() const {
  try {
    if (cause != nullptr) {
      std::rethrow_exception(cause);
    }
  } catch (const PeerLost& lost) {
    return lost.rank();
  } catch (...) {
  }
  return rank;
}

}  // namespace tandem::sim_test
