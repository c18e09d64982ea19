#include "packing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

namespace eyespan {

namespace {

void require_tree(std::span<const std::int32_t> tokens, std::span<const std::int32_t> parents,
                  std::span<const float> scores) {
  const std::size_t n = tokens.size();
  if (parents.size() != n || (!scores.empty() && scores.size() != n)) {
    throw std::invalid_argument("a draft tree of " + std::to_string(n) + " tokens has " +
                                std::to_string(parents.size()) + " parents and " +
                                std::to_string(scores.size()) + " scores; one each is needed");
  }
  if (n >= kMaxPack) {
    throw std::invalid_argument("a draft tree of " + std::to_string(n) +
                                " nodes does not fit a pack of 128 with its root");
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (parents[i] < -1 || parents[i] >= static_cast<std::int32_t>(i)) {
      throw std::invalid_argument("node " + std::to_string(i) + " of a draft tree has parent " +
                                  std::to_string(parents[i]) +
                                  "; a parent is -1 (the root) or comes before its child");
    }
    if (!scores.empty() && std::isnan(scores[i])) {
      throw std::invalid_argument("the score of node " + std::to_string(i) +
                                  " of a draft tree is not a number");
    }
  }
}

}  // namespace

Packed pack(std::span<const std::int32_t> tokens, std::span<const std::int32_t> parents,
            std::span<const float> scores, std::int32_t root_token) {
  require_tree(tokens, parents, scores);
  const std::size_t n = tokens.size();

  // Sibling lists, best first: prepending from the worst node to the best leaves the best in front.
  std::vector<std::int32_t> by_score(n);
  std::iota(by_score.begin(), by_score.end(), 0);
  if (!scores.empty()) {
    std::stable_sort(by_score.begin(), by_score.end(),
                     [&](std::int32_t a, std::int32_t b) { return scores[a] > scores[b]; });
  }
  std::vector<std::int32_t> first_child(n + 1, -1), next_sibling(n, -1);  // the root's list is last
  for (std::size_t i = n; i-- > 0;) {
    const std::int32_t node = by_score[i];
    std::int32_t& first = first_child[parents[node] < 0 ? n : parents[node]];
    next_sibling[node] = first;
    first = node;
  }

  Packed packed;
  packed.tokens.reserve(n + 1);
  packed.parents.reserve(n + 1);
  packed.depths.reserve(n + 1);
  packed.ancestors.reserve(n + 1);
  packed.order.reserve(n);
  packed.tokens.push_back(root_token);
  packed.parents.push_back(-1);
  packed.depths.push_back(0);
  packed.ancestors.push_back(AncestorSet{1, 0});

  std::vector<std::int32_t> place(n);  // packed index of a draft node
  for (std::int32_t node = first_child[n]; node >= 0;) {
    const std::int32_t parent = parents[node] < 0 ? 0 : place[parents[node]];
    const std::size_t i = packed.tokens.size();
    place[node] = static_cast<std::int32_t>(i);
    AncestorSet above = packed.ancestors[parent];
    above[i / 64] |= std::uint64_t{1} << (i % 64);
    packed.tokens.push_back(tokens[node]);
    packed.parents.push_back(parent);
    packed.depths.push_back(packed.depths[parent] + 1);
    packed.ancestors.push_back(above);
    packed.order.push_back(node);

    // Down to the best child, else along the siblings, else up to the first one still open.
    std::int32_t next = first_child[node];
    for (std::int32_t up = node; next < 0 && up >= 0; up = parents[up]) next = next_sibling[up];
    node = next;
  }
  return packed;
}

}  // namespace eyespan
