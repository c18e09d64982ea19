// Packing: a draft tree as one verify forward sees it (RECAP section 3.5).
//
// Root first, then depth-first, best child first, so that the likeliest chain is contiguous and its
// cache entries need no move. O(n log n) for n <= 128 nodes. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "draft.h"

namespace eyespan {

using AncestorSet = std::array<std::uint64_t, kMaxPack / 64>;  // bit j: node j

struct Packed {
  std::vector<std::int32_t> tokens, parents, depths;
  std::vector<AncestorSet> ancestors;  // of node i: itself and every node above it
  std::vector<std::int32_t> order;     // draft index of packed node i + 1
};

/// @param scores one a node, or empty. Siblings stand by descending score; ties, and drafts without
/// scores, in the order of the draft.
/// Throws std::invalid_argument for a tree that is malformed or larger than 127 nodes.
Packed pack(std::span<const std::int32_t> tokens, std::span<const std::int32_t> parents,
            std::span<const float> scores, std::int32_t root_token);

}  // namespace eyespan
