// models/io/tokenizer/text_stream.hpp — decodes tokens that arrive one by one, for printing them
// immediately.
//
// Invariant: the results of push() and finish(), joined, are the text that the tokenizer makes of
// all tokens, and each result is whole UTF-8. Bytes that are no whole character yet wait for the
// next token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/io/tokenizer/tokenizer.hpp"

namespace tandem {

class TextStream {
 public:
  /// Special tokens have no text.
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// Adds a token, and returns the text that can be printed now.
  std::string push(std::int32_t id);
  /// The rest of the text.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> ids_;
  bool in_bytes_ = false;  // the tokens end with single bytes, which more may follow
  std::size_t printed_ = 0;
};

}  // namespace tandem
