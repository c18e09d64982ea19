// The fixed expansion that best-first search is compared with (RECAP table 4): a tree whose shape
// is known before the memory is read, filled level by level.
//
// Cost for n nodes: n look-ups and fusions. Pure; reads the memory only.
#pragma once

#include <span>

#include "best_first_tree.h"

namespace eyespan {

/// The static tree of Token Recycling (Luo et al., 2025), "2.2.2": 80 nodes, depth 6. Children of
/// each node in breadth-first order, root first; the k-th child is the candidate of rank k.
std::span<const std::int32_t> token_recycling_shape() noexcept;

/// Throws std::invalid_argument unless `shape` counts the children of one whole tree.
void require_shape(std::span<const std::int32_t> shape);

/// Fills `shape` level by level, in breadth-first order, until `budget` nodes. Where the memory has
/// no candidate of a rank the place and all below it stay empty: nothing takes their room.
Draft static_tree(const SearchGround& ground, const SearchRules& rules,
                  std::span<const std::int32_t> shape, int budget);

}  // namespace eyespan
