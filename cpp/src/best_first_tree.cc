#include "best_first_tree.h"

#include <algorithm>
#include <stdexcept>

#include "checks.h"

namespace eyespan {

namespace {

constexpr int kRankBits = 3;
constexpr int kMostDepth = 21;

// A candidate on the frontier. Two of them never lie on one path, so that comparing left-aligned
// rank paths as numbers is comparing them lexicographically.
struct Path {
  double score;
  std::uint64_t ranks;
  std::int32_t token;
  std::int32_t parent;
  Context before;  // its parent's context
};

bool worse(const Path& a, const Path& b) {
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
  std::vector<Path> frontier;
  frontier.reserve(static_cast<std::size_t>(std::max(budget, 1)) * kRowSize);

  const auto push_children = [&](std::int32_t node, const Context& context, double score,
                                 std::uint64_t ranks, int depth) {
    const Candidates next = expand(ground, context, node < 0, rules);
    const double eta = rules.eta.at(depth);
    for (int rank = 0; rank < next.count; ++rank) {
      const auto place = static_cast<std::uint64_t>(rank) << (64 - kRankBits * depth);
      frontier.push_back(
          Path{score * (eta * next.probs[rank]), ranks | place, next.ids[rank], node, context});
      std::push_heap(frontier.begin(), frontier.end(), worse);
    }
  };

  if (budget > 0) push_children(-1, ground.root, 1.0, 0, 1);
  while (!frontier.empty() && draft.size() < static_cast<std::size_t>(budget)) {
    std::pop_heap(frontier.begin(), frontier.end(), worse);
    const Path best = frontier.back();
    frontier.pop_back();
    const std::int32_t node = draft.add(best.token, best.parent, best.score, 0);
    const bool last = draft.size() == static_cast<std::size_t>(budget);
    if (last || draft.depths[node] == rules.depth || ground.eos.contains(best.token)) continue;
    push_children(node, best.before.then(best.token, ground.media), best.score, best.ranks,
                  draft.depths[node] + 1);
  }
  EYESPAN_VERIFY(draft);
  return draft;
}

}  // namespace eyespan
