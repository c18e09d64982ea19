// Token Recycling's draft (Luo et al., 2025): the static tree, filled from a matrix that holds each
// token's 8 best next tokens.
//
// Cost: 80 places, a row of 32 bytes each. Pure; reads the matrix only.
#pragma once

#include <span>
#include <vector>

#include "token_set.h"

namespace eyespan {

struct RecycledTree {
  std::vector<std::int32_t> tokens, parents;  // a parent comes first, -1 hangs from the root
  std::vector<float> scores;                  // 2^-(sum of rank + 1) of a path, or 0
};

/// Reads the first `budget` places of the tree, breadth first, the child of rank r being entry r of
/// its parent's row. Media and what is no token are left out with all below them, and keep their
/// places. The score of a node is 0 when its path holds one that repeats a better sibling, or one
/// read from a row that was never written (eight times the same id).
/// @param matrix [vocab, 8] row-major.
RecycledTree recycled_tree(std::span<const std::int32_t> matrix, std::int32_t root,
                           const TokenSet& media, int budget);

}  // namespace eyespan
