// Lookahead's draft: what followed the last tokens in the prompt and in earlier answers, as one tree
// (the hierarchical mode of Zhao et al., KDD 2024, arXiv 2312.12728).
//
// A node's input count comes from the request's own prompt, its output count from answers; the mixed
// score (1 - w) x input + w x output, w = 1e-4, lets inputs decide and outputs break ties. The two
// counts live in two tries that are read as one, so that a prompt's counts end with its request.
//
// Cost: the children of the nodes that are sent, and those of the 32 that count most among answers;
// independent of the history's length but for how many different tokens followed one. Pure; reads
// the tries only.
#pragma once

#include <span>

#include "draft.h"
#include "window_trie.h"

namespace eyespan {

struct LookaheadRules {
  int nodes = 64;                // of the tree, root included, 2 to 128: the decoding length
  int depth = 12;                // longest path: the branch length, 1 to 64
  double output_weight = 1e-4;   // w, in [0, 1]
};

/// Throws std::invalid_argument for a rule outside its range.
void require_rules(const LookaheadRules& rules);

/// Looks up the trie of each token of `query` in turn, oldest first, below the tokens after it; the
/// first tree of at least `depth` nodes (root included) is the draft, else the last one found.
///
/// Where more than `nodes` nodes follow, those stay whose output count reaches the (nodes / 2)-th
/// largest there. The rest is taken depth-first by falling mixed score, ties by the lower id, until
/// there are `nodes` with the root, or `budget` without. A score is the product of the shares that
/// mixed scores have among siblings.
Draft lookahead(const WindowTrie& input, const WindowTrie& output,
                std::span<const std::int32_t> query, const LookaheadRules& rules,
                const TokenSet& media, int budget);

}  // namespace eyespan
