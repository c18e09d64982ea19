// A set of token ids as a bitmap: media ids that are never text, or ids that end an answer.
//
// Cost: vocab_size / 8 bytes; contains() is one load. Immutable, so any thread may read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace eyespan {

/// Memory keys hold up to three ids in 64 bits, so that an id has 21 of them.
inline constexpr int kTokenBits = 21;
inline constexpr std::int32_t kTokenLimit = std::int32_t{1} << kTokenBits;

/// Throws std::invalid_argument unless 0 <= token < 2^21.
void require_token(std::int32_t token);

class TokenSet {
 public:
  /// @param vocab_size ids the bitmap covers; larger ids in `ids` widen it.
  /// @param ids members, each in [0, 2^21).
  TokenSet(std::size_t vocab_size, std::span<const std::int32_t> ids);

  bool contains(std::int32_t token) const noexcept {
    const auto word = static_cast<std::uint32_t>(token) / 64;
    return word < words_.size() && (words_[word] >> (static_cast<std::uint32_t>(token) % 64) & 1);
  }

  std::size_t size() const noexcept { return size_; }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t size_ = 0;
};

}  // namespace eyespan
