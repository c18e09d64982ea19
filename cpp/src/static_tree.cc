#include "static_tree.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "checks.h"

namespace eyespan {

namespace {

constexpr std::array<std::int32_t, 81> kTokenRecycling{
    8,                                                                    // root
    8, 4, 3, 2, 1, 1, 1, 1,                                               // depth 1
    8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0,        // depth 2
    5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0,  // depth 3
    3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0,                          // depth 4
    2, 0, 0, 1, 0, 0, 0, 0,                                               // depth 5
    0, 0, 0,                                                              // depth 6
};

}  // namespace

std::span<const std::int32_t> token_recycling_shape() noexcept { return kTokenRecycling; }

void require_shape(std::span<const std::int32_t> shape) {
  std::size_t places = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 0 || shape[i] > kRowSize || i >= places) {
      throw std::invalid_argument(
          "a tree shape lists 0 to 8 children for each node, breadth first, root first");
    }
    places += static_cast<std::size_t>(shape[i]);
  }
  if (places != shape.size()) {
    throw std::invalid_argument("a tree shape of " + std::to_string(shape.size()) +
                                " entries describes " + std::to_string(places) + " nodes");
  }
}

Draft static_tree(const SearchGround& ground, const SearchRules& rules,
                  std::span<const std::int32_t> shape, int budget) {
  require_shape(shape);
  struct Place {
    std::int32_t node = -1;  // in the draft; the root is -1 as well, but always filled
    bool filled = false;
    Context context;
  };
  std::vector<Place> places(shape.size());
  places[0].filled = true;
  places[0].context = ground.root;

  Draft draft;
  std::size_t next_place = 1;
  for (std::size_t p = 0; p < shape.size(); next_place += static_cast<std::size_t>(shape[p++])) {
    if (!places[p].filled || shape[p] == 0) continue;
    const std::int32_t node = places[p].node;
    const int depth = draft.depth_of(node) + 1;
    if (depth > rules.depth || (node >= 0 && ground.eos.contains(draft.tokens[node]))) continue;
    const Candidates next = expand(ground, places[p].context, node < 0, rules);
    const double score = draft.score_of(node);
    for (int rank = 0; rank < std::min<int>(shape[p], next.count); ++rank) {
      if (draft.size() >= static_cast<std::size_t>(std::max(budget, 0))) return draft;
      Place& child = places[next_place + static_cast<std::size_t>(rank)];
      child.node = draft.add(next.ids[rank], node,
                             score * (rules.eta.at(depth) * next.probs[rank]), 0);
      child.filled = true;
      child.context = places[p].context.then(next.ids[rank], ground.media);
    }
  }
  EYESPAN_VERIFY(draft);
  return draft;
}

}  // namespace eyespan
