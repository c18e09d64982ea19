// SuffixDecoding's draft (Oliaro et al., 2024, arXiv 2411.04975): what followed the context's end
// before, as often as it did.
//
// For every length p of a match of the context's end, p = 1, 2, ...: the continuations met after it
// form a tree whose nodes have the chance D = D(parent) x count / (count of all siblings). The
// chances of p tokens' worth of nodes, taken greedily, are added up; the highest sum wins, ties to
// the longer match.
//
// Cost, independent of the text's length: one link walk a context token; for each p at most
// max_factor x p + max_offset expansions of at most 512 edges. Pure; reads the automaton only.
#pragma once

#include <cstdint>
#include <span>

#include "draft.h"
#include "suffix_automaton.h"
#include "token_set.h"

namespace eyespan {

struct SuffixRules {
  double max_factor = 1.0;  // nodes a match of p tokens may give: max_factor x p + max_offset
  double max_offset = 0.0;
  double min_prob = 0.1;  // smallest chance D of a node
  int max_depth = 24;     // longest match and continuation together, 2 to 1,024
  bool tree = true;       // else only the likeliest path
};

/// Throws std::invalid_argument for a rule outside its range.
void require_rules(const SuffixRules& rules);

struct SuffixGuess {
  Draft draft;
  double score = 0.0;      // the sum of the nodes' chances: tokens expected to be accepted
  std::int32_t match = 0;  // tokens of the match that gave it
};

/// The best guess for what follows `context` (its last `max_depth` - 1 tokens count), at most
/// `budget` nodes. Ties among nodes go to the one found first, siblings found by falling count and
/// rising id; an end id has no children. Throws std::invalid_argument when the automaton counts
/// less deeply than `max_depth`.
SuffixGuess guess_suffix(const SuffixAutomaton& text, std::span<const std::int32_t> context,
                         const SuffixRules& rules, const TokenSet& media, const TokenSet& eos,
                         int budget);

}  // namespace eyespan
