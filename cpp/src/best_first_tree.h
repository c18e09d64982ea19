// Best-first construction of the draft tree (RECAP section 3.5, equation 8): at every node the
// memory is asked again, under the node's own path; the likeliest paths are kept.
//
// Cost for n nodes: n look-ups of up to 3 rows, n fusions, 2 n heap pushes. Pure; reads the memory
// only.
#pragma once

#include <span>

#include "draft.h"
#include "fusion.h"
#include "memory.h"

namespace eyespan {

/// Limits and rules of a search; `budget` counts nodes besides the root.
struct SearchRules {
  Fusion fusion = Fusion::entropy;
  Priors priors{0.70, 0.20, 0.10};
  DepthPriors eta;
  int width = kRowSize;  // most children of a node, 1 to 8
  int depth = 10;        // longest path, 1 to 21: a rank path packs 3 bits a level in 64
};

/// Throws std::invalid_argument for a rule outside its range.
void require_rules(const SearchRules& rules);

/// The places a search starts from and must not pass.
struct SearchGround {
  const Memory& memory;
  Context root;                           // the history, root included
  const TokenSet& media;                  // never proposed
  const TokenSet& eos;                    // proposed, but without children
  std::span<const RowView> fallback;  // used at the root alone, when the memory has no row
};

/// What may follow a node: fused, without media ids (not renormalised), at most `width`.
Candidates expand(const SearchGround& ground, const Context& context, bool is_root,
                  const SearchRules& rules);

/// Pops the best path, adds it, pushes its children, until `budget` nodes or nothing is left. Ties:
/// the lexicographically smaller path of ranks, a rank being the place among siblings.
Draft best_first_tree(const SearchGround& ground, const SearchRules& rules, int budget);

}  // namespace eyespan
