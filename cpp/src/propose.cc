#include "propose.h"

#include <stdexcept>
#include <string>

#include "checks.h"
#include "static_tree.h"

namespace eyespan {

Draft propose(const SearchGround& ground, const ProposeRules& rules, int budget,
              const Continuation& continuation) {
  const int on_top =
      rules.suffix_inside_budget ? 0 : static_cast<int>(continuation.tokens.size());
  if (budget < 0 || budget + on_top >= kMaxPack) {
    throw std::invalid_argument("a budget of " + std::to_string(budget) + " nodes and " +
                                std::to_string(on_top) +
                                " on top of it must lie in [0, 127] together");
  }
  Draft draft = rules.shape.empty()
                    ? best_first_tree(ground, rules.search, budget)
                    : static_tree(ground, rules.search, rules.shape, budget);
  insert_continuation(draft, continuation, rules.search.eta, ground.eos,
                      rules.suffix_inside_budget ? budget : -1);
  EYESPAN_VERIFY(draft);
  return draft;
}

}  // namespace eyespan
