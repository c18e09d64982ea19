// A draft tree while it is being built, and the suffix continuation that joins it (RECAP 3.5).
//
// Invariant: a node's parent comes before it (-1 hangs from the root), siblings differ in token,
// and a prefix of the arrays is a tree too, so that a smaller budget is a shorter prefix.
// Flat arrays of at most 127 nodes; not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fusion.h"
#include "token_set.h"

namespace eyespan {

inline constexpr int kMaxPack = 128;  // nodes of a packed tree, root included

struct Draft {
  std::vector<std::int32_t> tokens, parents, depths;
  std::vector<double> scores;         // of a path: product of eta_d q(z_d), equation 8
  std::vector<std::int32_t> origins;  // 0 from the memory, 1 from the suffix continuation

  std::size_t size() const noexcept { return tokens.size(); }
  int depth_of(std::int32_t node) const { return node < 0 ? 0 : depths[node]; }
  double score_of(std::int32_t node) const { return node < 0 ? 1.0 : scores[node]; }

  /// Makes room for `size` nodes.
  void reserve(std::size_t size);
  /// Appends a node and returns its index. O(1).
  std::int32_t add(std::int32_t token, std::int32_t parent, double score, std::int32_t origin);
  /// Keeps the first `size` nodes.
  void truncate(std::size_t size);
  /// The child of `parent` with `token`, or -1. O(size).
  std::int32_t child(std::int32_t parent, std::int32_t token) const noexcept;
  /// The first rule that is broken, or "".
  std::string check_integrity() const;
};

/// How far a path's score falls with its depth: the paper's eta; the last value repeats.
class DepthPriors {
 public:
  /// Throws std::invalid_argument unless there is a value and all lie in (0, 1].
  explicit DepthPriors(std::span<const double> values);
  double at(int depth) const noexcept {
    const auto i = static_cast<std::size_t>(depth - 1);
    return i < values_.size() ? values_[i] : values_.back();
  }

 private:
  std::vector<double> values_;
};

/// What the suffix automaton found.
struct Continuation {
  std::span<const std::int32_t> tokens;
  /// How sure its tokens are; stands where equation 8 has q. Only ranks, never changes the scores
  /// of nodes that the memory proposed.
  double mass = 1.0;
};

/// Inserts the continuation from the root, sharing equal children; stops after an end id. Its new
/// nodes come on top of what is there, or, with `cap` >= 0, the draft's last nodes make room so
/// that all nodes together are at most `cap`. O(size x tokens).
void insert_continuation(Draft& draft, const Continuation& continuation, const DepthPriors& eta,
                         const TokenSet& eos, int cap);

}  // namespace eyespan
