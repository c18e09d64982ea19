// The text just before a prediction: its last three tokens at most, packed at 21 bits each, and the
// memory keys they make (RECAP section 3.3: U[x], C[v, x], G[u, v, x]).
//
// Invariant: `known` tokens are packed, 0 to 3, the newest in the lowest bits; a media token breaks
// the text, so that no key ever holds one. A value type; every call is O(1).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "token_set.h"

namespace eyespan {

class Context {
 public:
  static constexpr int kMost = 3;

  Context() = default;

  /// The context after `history`, oldest token first; only the last three count.
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
    next.packed_ = ((packed_ << kTokenBits) | static_cast<std::uint64_t>(token)) & mask(kMost);
    next.known_ = std::min(known_ + 1, kMost);
    return next;
  }

  /// Tokens known since the start of the history or the last media token, 0 to 3.
  int known() const noexcept { return known_; }

  /// The key of the last `order` tokens; `order` must not exceed known().
  std::uint64_t key(int order) const noexcept { return packed_ & mask(order); }

 private:
  static constexpr std::uint64_t mask(int order) noexcept {
    return (std::uint64_t{1} << (kTokenBits * order)) - 1;
  }

  std::uint64_t packed_ = 0;
  int known_ = 0;
};

}  // namespace eyespan
