// One round's proposal, put together: search over the memory, then sequence reuse (RECAP 3.5).
//
// Reads the memory and the continuation, changes nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "best_first_tree.h"
#include "draft.h"

namespace eyespan {

struct ProposeRules {
  SearchRules search;
  std::vector<std::int32_t> shape;    // empty: best first; else the static tree to fill
  bool suffix_inside_budget = false;  // continuation nodes count within the budget
};

/// Throws std::invalid_argument for rules outside their range, or a budget that with the
/// continuation on top would pass 127 nodes.
Draft propose(const SearchGround& ground, const ProposeRules& rules, int budget,
              const Continuation& continuation);

}  // namespace eyespan
