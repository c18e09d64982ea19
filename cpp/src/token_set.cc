#include "token_set.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace eyespan {

void require_token(std::int32_t token) {
  if (token < 0 || token >= kTokenLimit) {
    throw std::invalid_argument("token id " + std::to_string(token) +
                                " cannot be part of a key: ids must lie in [0, 2^21)");
  }
}

TokenSet::TokenSet(std::size_t vocab_size, std::span<const std::int32_t> ids) {
  if (vocab_size > static_cast<std::size_t>(kTokenLimit)) {
    throw std::invalid_argument("vocab_size " + std::to_string(vocab_size) +
                                " is larger than 2^21, the most that memory keys can hold");
  }
  std::size_t covered = vocab_size;
  for (const std::int32_t id : ids) {
    require_token(id);
    covered = std::max(covered, static_cast<std::size_t>(id) + 1);
  }
  words_.resize((covered + 63) / 64);
  for (const std::int32_t id : ids) {
    std::uint64_t& word = words_[static_cast<std::size_t>(id) / 64];
    const std::uint64_t bit = std::uint64_t{1} << (id % 64);
    if (!(word & bit)) ++size_;
    word |= bit;
  }
}

}  // namespace eyespan
