#include "models/data/alpaca_tokens.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/system/machine.hpp"
#include "runtime/thread.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr std::size_t kRecordsAtATime = 64;  // of a thread

struct TokenRecord {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learnt;
  bool is_cut = false;
};

void check_max_length(const Tokenizer& tokenizer, std::int64_t max_length) {
  const std::size_t added = tokenizer.prefix().size() + tokenizer.suffix().size();
  if (max_length < 1 || added > static_cast<std::size_t>(max_length)) {
    throw user_error("dataset", "max_length is {}, the tokenizer alone adds {} tokens; raise it",
                     max_length, added);
  }
}

/// How many ids at the front of a record are the question's.
std::size_t question_length(std::string_view question_text, const Tokenizer& tokenizer,
                            std::span<const std::int32_t> whole) {
  std::vector<std::int32_t> question(tokenizer.prefix().begin(), tokenizer.prefix().end());
  const auto text = tokenizer.encode(question_text);
  question.insert(question.end(), text.begin(), text.end());
  return static_cast<std::size_t>(std::ranges::mismatch(question, whole).in1 - question.begin());
}

TokenRecord tokenise(const AlpacaRecord& record, const Tokenizer& tokenizer,
                     const AlpacaTokenOptions& options) {
  const std::string question = alpaca_question(record);
  TokenRecord made = {.ids = tokenizer.encode(question + record.output, true)};
  if (options.end_token && (made.ids.empty() || made.ids.back() != *options.end_token)) {
    made.ids.push_back(*options.end_token);
  }
  made.learnt.assign(made.ids.size(), 1);
  if (options.loss_on != LossOn::kAll) {
    std::fill_n(made.learnt.begin(), question_length(question, tokenizer, made.ids),
                std::uint8_t{0});
  }
  const auto most = static_cast<std::size_t>(options.max_length);
  made.is_cut = made.ids.size() > most;
  if (made.is_cut) {
    made.ids.resize(most);
    made.learnt.resize(most);
    if (!options.end_token) {
      std::ranges::copy_backward(tokenizer.suffix(), made.ids.end());
    }
  }
  return made;
}

struct Joined {
  std::vector<std::thread> threads;

  ~Joined() {
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
};

/// Calls work(i) for all i below `count` on all CPUs of this process. Throws what the lowest i
/// threw, as if they had been called in turn.
template <class Work>
void for_each_in_parallel(std::size_t count, const Work& work) {
  const std::size_t pieces = (count + kRecordsAtATime - 1) / kRecordsAtATime;
  std::vector<std::exception_ptr> errors(pieces);
  std::atomic<std::size_t> next = 0;
  const auto take_pieces = [&] {
    for (std::size_t piece = next++; piece < pieces; piece = next++) {
      try {
        const std::size_t end = std::min(count, (piece + 1) * kRecordsAtATime);
        for (std::size_t i = piece * kRecordsAtATime; i < end; ++i) {
          work(i);
        }
      } catch (...) {
        errors[piece] = std::current_exception();
      }
    }
  };
  const int threads = static_cast<int>(
      std::min(pieces, static_cast<std::size_t>(std::max(1, machine::usable_cpus()))));
  {
    Joined others;
    for (int i = 1; i < threads; ++i) {
      others.threads.push_back(thread::start("tokenising", i, threads, take_pieces));
    }
    take_pieces();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

}  // namespace

std::shared_ptr<MemoryRecords> tokenise_alpaca(std::span<const AlpacaRecord> records,
                                               const Tokenizer& tokenizer,
                                               const AlpacaTokenOptions& options) {
  check_max_length(tokenizer, options.max_length);
  std::vector<TokenRecord> made(records.size());
  for_each_in_parallel(records.size(),
                       [&](std::size_t i) { made[i] = tokenise(records[i], tokenizer, options); });
  auto kept = std::make_shared<MemoryRecords>();
  for (const TokenRecord& record : made) {
    kept->add(record.ids, record.learnt, record.is_cut);
  }
  return kept;
}

}  // namespace tandem
