#include "suffix_draft.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "checks.h"

namespace eyespan {

namespace {

// After one frequent token anything may follow: past this many, the continuations first met longest
// ago are not looked at, so that a long text costs no more than a short one.
constexpr int kMostEdges = 512;

struct Next {
  std::int32_t token, state, count;
};

struct Candidate {
  double chance;
  std::int32_t found;  // order of discovery
  std::int32_t token, state, parent;
};

bool worse(const Candidate& a, const Candidate& b) {
  return a.chance != b.chance ? a.chance < b.chance : a.found > b.found;
}

class Guesser {
 public:
  Guesser(const SuffixAutomaton& text, const SuffixRules& rules, const TokenSet& media,
          const TokenSet& eos)
      : text_(text), rules_(rules), media_(media), eos_(eos) {}

  SuffixGuess guess(SuffixCursor match, std::size_t most) {
    SuffixGuess best;
    best.match = match.length;
    best.draft.reserve(most);
    frontier_.clear();
    found_ = 0;
    const int deepest = rules_.max_depth - match.length;
    if (deepest > 0 && most > 0) push_next(match.state, -1, 1.0, most);
    while (best.draft.size() < most && !frontier_.empty()) {
      std::pop_heap(frontier_.begin(), frontier_.end(), worse);
      const Candidate taken = frontier_.back();
      frontier_.pop_back();
      const std::int32_t node = best.draft.add(taken.token, taken.parent, taken.chance, 0);
      best.score += taken.chance;
      if (best.draft.depth_of(node) < deepest && !eos_.contains(taken.token)) {
        push_next(taken.state, node, taken.chance, most);
      }
    }
    return best;
  }

 private:
  void push_next(std::int32_t state, std::int32_t parent, double chance, std::size_t most) {
    next_.clear();
    double total = 0.0;
    text_.for_each_next(state, kMostEdges, [&](std::int32_t token, std::int32_t target) {
      if (media_.contains(token)) return;
      next_.push_back(Next{token, target, text_.count(target)});
      total += text_.count(target);
    });
    const std::size_t kept = std::min(next_.size(), rules_.tree ? most : 1);
    std::partial_sort(next_.begin(), next_.begin() + static_cast<std::ptrdiff_t>(kept), next_.end(),
                      [](const Next& a, const Next& b) {
                        return a.count != b.count ? a.count > b.count : a.token < b.token;
                      });
    for (std::size_t i = 0; i < kept; ++i) {
      const double child = chance * (next_[i].count / total);
      if (child < rules_.min_prob) break;
      frontier_.push_back(Candidate{child, found_++, next_[i].token, next_[i].state, parent});
      std::push_heap(frontier_.begin(), frontier_.end(), worse);
    }
  }

  const SuffixAutomaton& text_;
  const SuffixRules& rules_;
  const TokenSet& media_;
  const TokenSet& eos_;
  std::vector<Next> next_;
  std::vector<Candidate> frontier_;
  std::int32_t found_ = 0;
};

}  // namespace

void require_rules(const SuffixRules& rules) {
  const auto finite = [](double value) { return std::isfinite(value); };
  if (!finite(rules.max_factor) || rules.max_factor < 0.0 || !finite(rules.max_offset)) {
    throw std::invalid_argument("max_factor must be 0 or more and max_offset finite");
  }
  if (!(rules.min_prob >= 0.0 && rules.min_prob <= 1.0)) {
    throw std::invalid_argument("min_prob must lie in [0, 1]");
  }
  if (rules.max_depth < 2 || rules.max_depth > 1024) {
    throw std::invalid_argument("max_depth must lie in [2, 1024]");
  }
}

SuffixGuess guess_suffix(const SuffixAutomaton& text, std::span<const std::int32_t> context,
                         const SuffixRules& rules, const TokenSet& media, const TokenSet& eos,
                         int budget) {
  if (text.count_depth() < rules.max_depth) {
    throw std::invalid_argument("the automaton must count substrings as long as max_depth");
  }
  const auto longest = static_cast<std::size_t>(rules.max_depth - 1);
  if (context.size() > longest) context = context.last(longest);
  SuffixCursor match = text.advance(SuffixCursor{}, context, media, rules.max_depth - 1);

  const double room = std::clamp(budget, 0, kMaxPack - 1);
  Guesser guesser(text, rules, media, eos);
  SuffixGuess best;
  for (; match.length > 0; --match.length) {
    while (text.length(text.link(match.state)) >= match.length) {
      match.state = text.link(match.state);
    }
    // The small number keeps a product such as 0.1 x 30 from losing a node to rounding.
    const double nodes = std::floor(rules.max_factor * match.length + rules.max_offset + 1e-6);
    const auto most = static_cast<std::size_t>(std::clamp(nodes, 0.0, room));
    SuffixGuess guess = guesser.guess(match, most);
    if (guess.score > best.score) best = std::move(guess);
  }
  EYESPAN_VERIFY(best.draft);
  return best;
}

}  // namespace eyespan
