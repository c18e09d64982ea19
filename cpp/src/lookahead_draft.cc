#include "lookahead_draft.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "checks.h"

namespace eyespan {

namespace {

constexpr std::int32_t kNone = WindowTrie::kNone;

// One node of the two tries read as one: kNone where a trie lacks it.
struct Both {
  std::int32_t input, output;
};

struct Child {
  Both node;
  std::int32_t token;
  double mixed;
};

class Reader {
 public:
  Reader(const WindowTrie& input, const WindowTrie& output, const LookaheadRules& rules,
         const TokenSet& media)
      : input_(input), output_(output), rules_(rules), media_(media) {}

  Draft read(Both match, std::size_t most) {
    Draft draft;
    draft.reserve(most);
    double least = 0.0;
    if (count_below(match, 0) > static_cast<std::size_t>(rules_.nodes)) {
      least = output_count_of_rank(match.output, static_cast<std::size_t>(rules_.nodes) / 2);
    }
    take(draft, match, -1, least, most);
    return draft;
  }

  Both find(Both node, std::int32_t token) const {
    return {input_.find(node.input, token), output_.find(node.output, token)};
  }

 private:
  std::vector<Child> children(Both node) const {
    std::vector<Child> all;
    const auto add = [&](Both child, std::int32_t token) {
      if (media_.contains(token)) return;
      const double w = rules_.output_weight;
      const double mixed = (1.0 - w) * input_.count(child.input) + w * output_.count(child.output);
      all.push_back(Child{child, token, mixed});
    };
    for (auto n = input_.first_child(node.input); n != kNone; n = input_.sibling(n)) {
      add({n, output_.find(node.output, input_.token(n))}, input_.token(n));
    }
    for (auto n = output_.first_child(node.output); n != kNone; n = output_.sibling(n)) {
      const std::int32_t token = output_.token(n);
      if (input_.find(node.input, token) == kNone) add({kNone, n}, token);
    }
    return all;
  }

  // Nodes below, counted no further than one past the limit.
  std::size_t count_below(Both node, std::size_t counted) const {
    for (const Child& child : children(node)) {
      if (++counted > static_cast<std::size_t>(rules_.nodes)) break;
      counted = count_below(child.node, counted);
    }
    return counted;
  }

  // The rank-th largest output count below a node, 0 where fewer nodes have one. No node counts
  // more than its parent, so that the largest are found from above.
  double output_count_of_rank(std::int32_t node, std::size_t rank) const {
    std::vector<std::pair<double, std::int32_t>> heap;
    const auto push_children = [&](std::int32_t parent) {
      for (auto n = output_.first_child(parent); n != kNone; n = output_.sibling(n)) {
        heap.emplace_back(output_.count(n), n);
        std::push_heap(heap.begin(), heap.end());
      }
    };
    push_children(node);
    double count = 0.0;
    for (std::size_t i = 0; i < rank; ++i) {
      if (heap.empty()) return 0.0;
      std::pop_heap(heap.begin(), heap.end());
      const auto [largest, next] = heap.back();
      heap.pop_back();
      count = largest;
      push_children(next);
    }
    return count;
  }

  void take(Draft& draft, Both node, std::int32_t parent, double least, std::size_t most) const {
    if (draft.depth_of(parent) == rules_.depth) return;
    std::vector<Child> next = children(node);
    double total = 0.0;
    for (const Child& child : next) total += child.mixed;
    std::sort(next.begin(), next.end(), [](const Child& a, const Child& b) {
      return a.mixed != b.mixed ? a.mixed > b.mixed : a.token < b.token;
    });
    for (const Child& child : next) {
      if (draft.size() == most) return;
      if (output_.count(child.node.output) < least) continue;
      const double share = total > 0.0 ? child.mixed / total : 0.0;
      const std::int32_t at = draft.add(child.token, parent, draft.score_of(parent) * share, 0);
      take(draft, child.node, at, least, most);
    }
  }

  const WindowTrie& input_;
  const WindowTrie& output_;
  const LookaheadRules& rules_;
  const TokenSet& media_;
};

}  // namespace

void require_rules(const LookaheadRules& rules) {
  if (rules.nodes < 2 || rules.nodes > kMaxPack) {
    throw std::invalid_argument("nodes must lie in [2, 128]");
  }
  if (rules.depth < 1 || rules.depth > 64) throw std::invalid_argument("depth must lie in [1, 64]");
  if (!(rules.output_weight >= 0.0 && rules.output_weight <= 1.0)) {
    throw std::invalid_argument("output_weight must lie in [0, 1]");
  }
}

Draft lookahead(const WindowTrie& input, const WindowTrie& output,
                std::span<const std::int32_t> query, const LookaheadRules& rules,
                const TokenSet& media, int budget) {
  const auto most = static_cast<std::size_t>(std::clamp(budget, 0, rules.nodes - 1));
  Reader reader(input, output, rules, media);
  Draft draft;
  for (std::size_t i = 0; i < query.size(); ++i) {
    Both node{input.trie(query[i]), output.trie(query[i])};
    if (node.input == kNone && node.output == kNone) continue;
    for (const std::int32_t token : query.subspan(i + 1)) node = reader.find(node, token);
    draft = reader.read(node, static_cast<std::size_t>(rules.nodes) - 1);
    if (draft.size() + 1 >= static_cast<std::size_t>(rules.depth)) break;
  }
  if (draft.size() > most) draft.truncate(most);  // depth-first, so that what stays is a tree
  EYESPAN_VERIFY(draft);
  return draft;
}

}  // namespace eyespan
