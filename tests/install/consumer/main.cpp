// A program outside of the tree: actors, an ask with a deadline, a file, the CPU pool. Prints
// "consumer: ok".
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include <tandem/runtime.hpp>

namespace {

using namespace std::chrono_literals;
using tandem::Task;

struct Add {
  explicit Add(long value_in) : value(value_in) {}
  long value;
};
struct Total {
  using Reply = long;
};
struct Adder : tandem::Actor<Adder, Add, Total> {
  void handle(Add m) { total += m.value; }
  long handle(Total) { return total; }
  long total = 0;
};

Task<> feed(Adder::AddressType adder, long from, long to) {
  for (long i = from; i < to; ++i) {
    co_await adder.send(Add(i));
  }
}

Task<long> add_up(tandem::Scope& scope, tandem::CpuPool* pool) {
  Adder adder;
  adder.start(scope);
  co_await tandem::with_scope(
      [](tandem::Scope& feeders, Adder::AddressType address) -> Task<> {
        feeders.spawn("low", &feed, address, 0L, 1000L);
        feeders.spawn("high", &feed, address, 1000L, 2000L);
        co_return;
      },
      adder.address());
  std::vector<long> parts(4);
  co_await pool->for_chunks(parts.size(), [&](std::size_t i) { parts[i] = static_cast<long>(i); });
  for (const long part : parts) {
    co_await adder.address().send(Add(part));
  }
  const long total = co_await adder.address().ask(Total{}, 10s);
  adder.close();
  co_await scope.empty();
  co_return total;
}

Task<std::string> write_and_read(tandem::FileIo* files, std::string path) {
  const std::string text = "hello from outside";
  tandem::IoFile out = co_await files->open(path, tandem::OpenMode::kCreate);
  co_await files->write(out, 0, std::as_bytes(std::span(text)));
  co_await files->close(std::move(out));
  const tandem::IoFile in = co_await files->open(path, tandem::OpenMode::kRead);
  std::string back(100, '\0');
  back.resize(co_await files->read(in, 0, std::as_writable_bytes(std::span(back))));
  co_await files->remove(path);
  co_return back;
}

}  // namespace

int main() {
  tandem::EventLoop loop({.name = "consumer"});
  tandem::CpuPool pool(loop, {.threads = 2});
  tandem::FileIo files(loop);
  tandem::Scope scope(loop, "actors");
  const long total = loop.run(
      [](tandem::Scope* actors, tandem::CpuPool* workers) -> Task<long> {
        co_return co_await add_up(*actors, workers);
      },
      &scope, &pool);
  const std::string text = loop.run(&write_and_read, &files, std::string("consumer.tmp"));
  const bool ok = total == 1999L * 1000 + 6 && text == "hello from outside";
  std::printf("consumer: %s\n", ok ? "ok" : "wrong");
  return ok ? 0 : 1;
}
