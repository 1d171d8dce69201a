// The test kit from outside, without GoogleTest: a message is dropped, and its asker learns it.
#include <cstdio>

#include <tandem/runtime/actor.hpp>
#include <tandem/runtime/testing/test_kit.hpp>

struct Note {
  int value;
};
struct Last {
  using Reply = int;
};
struct Book : tandem::Actor<Book, Note, Last> {
  void handle(Note m) { last = m.value; }
  int handle(Last) { return last; }
  int last = 0;
};

tandem::Task<> write_two(Book::AddressType book) {
  co_await book.send(Note{1});
  co_await book.send(Note{2});
}
tandem::Task<int> ask_last(Book::AddressType book) { co_return co_await book.ask(Last{}); }

int main() {
  tandem::TestKit kit;
  auto& book = kit.make<Book>();
  kit.spawn("writer", &write_two, book.address());
  kit.expect<Note>().from("writer").to(book);
  kit.drop<Note>().to(book);
  auto last = kit.start("asker", &ask_last, book.address());
  kit.expect<Last>().to(book);
  const bool ok = last.get() == 1;
  std::printf("kit: %s\n", ok ? "ok" : "wrong");
  return ok ? 0 : 1;
}
