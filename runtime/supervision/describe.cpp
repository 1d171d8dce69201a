#include "runtime/supervision/describe.hpp"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <ranges>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/detail/await_chain.hpp"
#include "runtime/detail/mailbox/ask_table.hpp"
#include "runtime/detail/mailbox/mailbox.hpp"
#include "runtime/flight.hpp"
#include "runtime/io/signals.hpp"
#include "runtime/scope.hpp"
#include "runtime/util/json_writer.hpp"

namespace tandem {
namespace {

constexpr std::size_t kShownOperations = 64;

std::string counted(std::uint64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

void dump(EventLoop& loop, std::FILE* out) {
  std::fputs(describe_tasks(loop).c_str(), out);
  std::fputs("last operations:\n", out);
  std::fputs(
      flight::describe(flight::own_ring().entries(kShownOperations), flight::now_ns()).c_str(),
      out);
  std::fflush(out);
}

}  // namespace

std::string describe_tasks(EventLoop& loop) {
  std::string scopes;
  std::string actors;
  std::uint64_t scope_count = 0;
  std::uint64_t actor_count = 0;
  const detail::LoopRegistry& registry = loop.registry();
  for (const Scope* scope = registry.first_scope; scope != nullptr; scope = scope->next_on_loop()) {
    scopes = scope->describe() + scopes;  // the oldest first
    ++scope_count;
  }
  for (const detail::Mailbox* mailbox = registry.first_mailbox; mailbox != nullptr;
       mailbox = mailbox->next_on_loop()) {
    actors = fmt::format("actor {}: {}{}\n", mailbox->name(),
                         mailbox->depth() == 1 ? "1 message waits"
                                               : counted(mailbox->depth(), "message") + " wait",
                         mailbox->closed() ? ", closed" : "") +
             actors;
    ++actor_count;
  }
  std::string text =
      fmt::format("loop \"{}\" at {:.3f} s: {}, {}, {} without an answer, {}\n", loop.name(),
                  static_cast<double>(loop.now().time_since_epoch().count()) * 1e-9,
                  counted(scope_count, "scope"), counted(actor_count, "actor"),
                  counted(loop.asks().pending(), "ask"), counted(loop.armed_timers(), "timer"));
  if (registry.main != nullptr) {
    text += "  " + describe_await_chain(*registry.main, loop.now()) + "\n";
  }
  return text + scopes + actors;
}

std::string tasks_json(EventLoop& loop) {
  const detail::LoopRegistry& registry = loop.registry();
  std::vector<const Scope*> scopes;
  for (const Scope* scope = registry.first_scope; scope != nullptr; scope = scope->next_on_loop()) {
    scopes.push_back(scope);
  }
  std::vector<const detail::Mailbox*> mailboxes;
  for (const detail::Mailbox* box = registry.first_mailbox; box != nullptr;
       box = box->next_on_loop()) {
    mailboxes.push_back(box);
  }
  const std::int64_t now_ns = loop.now().time_since_epoch().count();
  JsonWriter json;
  json.begin_object().field("loop", loop.name());
  json.field("at_s", static_cast<double>(now_ns) * 1e-9);
  json.field("asks", loop.asks().pending()).field("timers", loop.armed_timers());
  json.key("scopes").begin_array();
  for (const Scope* scope : std::views::reverse(scopes)) {
    json.begin_object().field("name", scope->name()).key("tasks").begin_array();
    for (const auto* task = scope->first_task(); task != nullptr; task = task->next_in_scope) {
      const TaskPromiseBase& leaf = await_leaf(*task);
      json.begin_object().field("name", task->name != nullptr ? task->name : "");
      json.field("awaits", leaf.waiting_for != nullptr ? leaf.waiting_for : "");
      json.field("at", fmt::format("{}:{}", leaf.where.file_name(), leaf.where.line()));
      if (leaf.since_ns == TaskPromiseBase::kNeverAwaited) {
        json.field("since_s", nullptr);
      } else {
        const auto since_ns = std::max<std::int64_t>(0, now_ns - leaf.since_ns);
        json.field("since_s", static_cast<double>(since_ns) * 1e-9);
      }
      json.field("chain", describe_await_chain(*task, loop.now())).end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().key("actors").begin_array();
  for (const detail::Mailbox* box : std::views::reverse(mailboxes)) {
    json.begin_object().field("name", box->name()).field("depth", box->depth());
    json.field("closed", box->closed()).end_object();
  }
  return json.end_array().end_object().take();
}

void request_dump(EventLoop& loop, std::FILE* out) {
  struct Request : Op {
    Request(EventLoop& loop_in, std::FILE* out_in) noexcept
        : Op([](Op& op) noexcept {
            const std::unique_ptr<Request> self(static_cast<Request*>(&op));
            dump(self->loop, self->out);
          }),
          loop(loop_in),
          out(out_in) {}
    EventLoop& loop;
    std::FILE* out;
  };
  loop.post_from_any_thread(*new Request(loop, out));
}

// Held by the DumpOnSignal that installed it and by the wait under way, which may end later.
struct DumpOnSignal::Signals {
  Signals(EventLoop& loop_in, int signal, std::string file_in)
      : loop(loop_in),
        set(std::in_place, loop_in, std::initializer_list<int>{signal}),
        file(std::move(file_in)) {}
  EventLoop& loop;
  std::optional<tandem::Signals> set;  // until the DumpOnSignal ends
  std::string file;

  static void wait(const std::shared_ptr<Signals>& self) {
    self->set->async_wait([self](const asio::error_code& error, int) {
      if (!error && self->set) {
        dump(self->loop, stderr);
        if (std::FILE* out = self->file.empty() ? nullptr : std::fopen(self->file.c_str(), "ae")) {
          dump(self->loop, out);
          std::fclose(out);
        }
        wait(self);
      }
    });
  }
};

DumpOnSignal::DumpOnSignal(EventLoop& loop, int signal, std::string file)
    : signals_(std::make_shared<Signals>(loop, signal, std::move(file))) {
  Signals::wait(signals_);
}

DumpOnSignal::~DumpOnSignal() { signals_->set.reset(); }

}  // namespace tandem
