#include "best_first_tree.h"

#include <algorithm>
#include <stdexcept>

#include "checks.h"

namespace eyespan {

namespace {

constexpr int kRankBits = 3;
constexpr int kMostDepth = 21;

// A node whose children may still be taken: 64 of them are all that a search touches, instead of
// some 500 candidates.
struct Open {
  Candidates children;
  Context context;
  double score;
  std::uint64_t ranks;  // the node's path of ranks, 3 bits a level from the top
  std::int32_t node;
  int depth;  // of the children
};

// The best child of an open node that has not been taken. No two of the frontier lie on one path,
// so that comparing left-aligned rank paths as numbers is comparing them lexicographically.
struct Candidate {
  double score;
  std::uint64_t ranks;
  std::int32_t open;
  int rank;
};

bool worse(const Candidate& a, const Candidate& b) {
  return a.score != b.score ? a.score < b.score : a.ranks > b.ranks;
}

}  // namespace

void require_rules(const SearchRules& rules) {
  const bool priors_valid = std::all_of(rules.priors.begin(), rules.priors.end(),
                                        [](double prior) { return prior > 0.0 && prior <= 1.0; });
  if (!priors_valid) throw std::invalid_argument("priors must lie in (0, 1]");
  if (rules.width < 1 || rules.width > kRowSize) {
    throw std::invalid_argument("width must lie in [1, 8]");
  }
  if (rules.depth < 1 || rules.depth > kMostDepth) {
    throw std::invalid_argument("depth must lie in [1, 21]");
  }
}

Candidates expand(const SearchGround& ground, const Context& context, bool is_root,
                  const SearchRules& rules) {
  const Matches matches = ground.memory.find(context);
  Candidates candidates;
  if (matches.count > 0) {
    candidates = fuse(matches.span(), rules.fusion, rules.priors);
  } else if (is_root) {
    candidates = fuse(ground.fallback, Fusion::fixed_prior, rules.priors);
  }
  int kept = 0;
  for (int i = 0; i < candidates.count && kept < rules.width; ++i) {
    if (ground.media.contains(candidates.ids[i])) continue;
    candidates.ids[kept] = candidates.ids[i];
    candidates.probs[kept++] = candidates.probs[i];
  }
  candidates.count = kept;
  return candidates;
}

Draft best_first_tree(const SearchGround& ground, const SearchRules& rules, int budget) {
  Draft draft;
  std::vector<Open> open;
  std::vector<Candidate> frontier;
  if (budget < 1) return draft;
  const auto limit = static_cast<std::size_t>(budget);
  draft.reserve(kMaxPack);
  open.reserve(limit);
  frontier.reserve(limit + 1);

  // Children come by descending score, so that a sibling is only needed once the one before it is
  // taken: the frontier holds one candidate an open node.
  const auto push = [&](std::int32_t place, int rank) {
    const Open& from = open[static_cast<std::size_t>(place)];
    if (rank >= from.children.count) return;
    const double step = rules.eta.at(from.depth) * from.children.probs[rank];
    const auto ranks = static_cast<std::uint64_t>(rank) << (64 - kRankBits * from.depth);
    frontier.push_back(Candidate{from.score * step, from.ranks | ranks, place, rank});
    std::push_heap(frontier.begin(), frontier.end(), worse);
  };
  const auto expand_node = [&](std::int32_t node, const Context& context, double score,
                               std::uint64_t ranks, int depth) {
    open.push_back(
        Open{expand(ground, context, node < 0, rules), context, score, ranks, node, depth});
    push(static_cast<std::int32_t>(open.size()) - 1, 0);
  };

  expand_node(-1, ground.root, 1.0, 0, 1);
  while (!frontier.empty()) {
    std::pop_heap(frontier.begin(), frontier.end(), worse);
    const Candidate best = frontier.back();
    frontier.pop_back();
    const Open& from = open[static_cast<std::size_t>(best.open)];
    const std::int32_t token = from.children.ids[best.rank];
    const Context context = from.context.then(token, ground.media);
    const int depth = from.depth;
    const std::int32_t node = draft.add(token, from.node, best.score, 0);
    if (draft.size() == limit) break;
    push(best.open, best.rank + 1);
    if (depth < rules.depth && !ground.eos.contains(token)) {
      expand_node(node, context, best.score, best.ranks, depth + 1);
    }
  }
  EYESPAN_VERIFY(draft);
  return draft;
}

}  // namespace eyespan
