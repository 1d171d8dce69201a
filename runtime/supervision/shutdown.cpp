#include "runtime/supervision/shutdown.hpp"

#include <fmt/format.h>

#include "runtime/detail/mailbox/mailbox.hpp"
#include "runtime/exit_reason.hpp"

namespace tandem {
namespace {

double seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

Task<Shutdown::Report> Shutdown::run() {
  Report report;
  EventLoop& loop = root_.loop();
  detail::Mailbox* next = nullptr;
  for (detail::Mailbox* mailbox = loop.registry().first_mailbox; mailbox != nullptr;
       mailbox = next) {
    next = mailbox->next_on_loop();
    if (mailbox->stops_with(root_.stop_token())) {
      mailbox->close();
    }
  }
  co_await phase(&report, "intake", options_.handle, [this] { return mailboxes_left(); });
  root_.request_stop();
  co_await phase(&report, "stop", options_.drain, [this] { return tasks_left(); });
  for (const auto& each : hooks_) {
    Hook* hook = each.get();
    hook->begin(hook->scope);
    co_await phase(&report, hook->name, hook->limit, [hook] {
      return hook->scope.running() == 0 ? std::string() : hook->scope.describe();
    });
    hook->scope.request_stop();
  }
  co_await phase(&report, "rest", options_.rest, [this] { return tasks_left(); });
  for (const auto& hook : hooks_) {
    report.failures.insert(report.failures.end(), hook->scope.failures().begin(),
                           hook->scope.failures().end());
  }
  report.clean = report.phases.back().done;
  if (!report.clean) {
    throw Incomplete(std::move(report));
  }
  co_return report;
}

// Until nothing is left, at most `limit`.
Task<> Shutdown::phase(Report* report, const char* name, Duration limit, Left left) {
  EventLoop& loop = root_.loop();
  const TimePoint begin = loop.now();
  co_await yield();
  std::string what = left();
  const TimePoint end = time_after(begin, limit);
  while (!what.empty() && loop.now() < end) {
    co_await sleep_for(std::min(kLook, end - loop.now()));
    what = left();
  }
  report->phases.push_back({name, limit, loop.now() - begin, what.empty(), std::move(what)});
}

std::string Shutdown::mailboxes_left() const {
  std::string text;
  for (const detail::Mailbox* mailbox = root_.loop().registry().first_mailbox; mailbox != nullptr;
       mailbox = mailbox->next_on_loop()) {
    if (!mailbox->stops_with(root_.stop_token())) {
      continue;
    }
    text += fmt::format("  actor {}: {} messages wait\n", mailbox->name(), mailbox->depth());
  }
  return text;
}

std::string Shutdown::tasks_left() const {
  std::string text = root_.running() == 0 ? std::string() : root_.describe();
  for (const auto& hook : hooks_) {
    if (hook->scope.running() != 0) {
      text += hook->scope.describe();
    }
  }
  return text;
}

std::string Shutdown::Report::text() const {
  std::string text;
  for (const Phase& phase : phases) {
    text += fmt::format("{}: {} {:.3f} s of {:.3g} s\n", phase.name,
                        phase.done ? "done in" : "not done in", seconds(phase.took),
                        seconds(phase.limit));
    text += phase.left;
  }
  for (const TaskFailure& failure : failures) {
    text += fmt::format("{} failed: {}\n", failure.task, describe_error(failure.error));
  }
  return text;
}

Shutdown::Incomplete::Incomplete(Report report)
    : Error(ExitCode::kFailure,
            fmt::format("[shutdown] tasks still run after all phases; they wait for what never "
                        "comes, see their await chains:\n{}",
                        report.text())),
      report_(std::move(report)) {}

}  // namespace tandem
