// The text just before a prediction: its last four tokens at most and the memory keys they make
// (RECAP section 3.3: U[x], C[v, x], G[u, v, x]; STAND's n-grams go to four).
//
// Invariant: `known` tokens are kept, 0 to 4, the newest three packed at 21 bits each with the
// newest in the lowest bits; a media token breaks the text, so that no key ever holds one. A value
// type; every call is O(1).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "token_set.h"

namespace eyespan {

class Context {
 public:
  static constexpr int kMost = 4;

  Context() = default;

  /// The context after `history`, oldest token first; only the last four count.
  static Context after(std::span<const std::int32_t> history, const TokenSet& media) {
    Context context;
    const std::size_t used = std::min<std::size_t>(history.size(), kMost);
    for (const std::int32_t token : history.last(used)) context = context.then(token, media);
    return context;
  }

  /// The context one token later. Throws std::invalid_argument unless 0 <= token < 2^21.
  Context then(std::int32_t token, const TokenSet& media) const {
    require_token(token);
    if (media.contains(token)) return Context{};
    Context next;
    next.packed_ = ((packed_ << kTokenBits) | static_cast<std::uint64_t>(token)) & mask(kPacked);
    next.fourth_ = static_cast<std::int32_t>(packed_ >> (kTokenBits * (kPacked - 1)));
    next.known_ = std::min(known_ + 1, kMost);
    return next;
  }

  /// Tokens known since the start of the history or the last media token, 0 to 4.
  int known() const noexcept { return known_; }

  /// The key of the last `order` tokens; `order` must not exceed known(). Four tokens have more bits
  /// than a key: theirs is a hash of 63 bits, and two n-grams that share one share a row, which can
  /// only cost a guess.
  std::uint64_t key(int order) const noexcept {
    if (order <= kPacked) return packed_ & mask(order);
    std::uint64_t hashed = packed_ ^ (static_cast<std::uint64_t>(fourth_) * 0xD6E8FEB86659FD93u);
    hashed = (hashed ^ (hashed >> 32)) * 0x9E3779B97F4A7C15u;
    return (hashed ^ (hashed >> 32)) & mask(kPacked);
  }

 private:
  static constexpr int kPacked = 3;

  static constexpr std::uint64_t mask(int order) noexcept {
    return (std::uint64_t{1} << (kTokenBits * order)) - 1;
  }

  std::uint64_t packed_ = 0;
  std::int32_t fourth_ = 0;  // the token before the packed ones
  int known_ = 0;
};

}  // namespace eyespan
