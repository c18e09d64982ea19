// SuffixDecoding's guess on a text whose counts are known.
#include "suffix_draft.h"

#include "check.h"

using namespace eyespan;

namespace {

using Ids = std::vector<std::int32_t>;

const TokenSet kNone(10, {});

SuffixAutomaton text(int count_depth = 8) {
  SuffixAutomaton automaton(99, count_depth);
  automaton.extend(Ids{1, 2, 3, 5, 0, 1, 2, 4, 0, 1, 2, 3, 6}, kNone);
  CHECK(automaton.check_integrity().empty());
  return automaton;
}

void what_followed_most_comes_first() {
  const SuffixRules rules{.max_factor = 2.0, .max_depth = 8};
  const auto guess = guess_suffix(text(), Ids{9, 1, 2}, rules, kNone, kNone, 63);
  CHECK(guess.match == 2);
  CHECK(guess.draft.tokens == (Ids{3, 4, 5, 6}));
  CHECK(guess.draft.parents == (Ids{-1, -1, 0, 0}));
  CHECK(guess.score > 1.66 && guess.score < 1.67);
}

void a_path_follows_the_likeliest_child() {
  const SuffixRules rules{.max_factor = 2.0, .max_depth = 8, .tree = false};
  const auto guess = guess_suffix(text(), Ids{1, 2}, rules, kNone, kNone, 3);
  CHECK(guess.draft.tokens == (Ids{3, 5, 0}));
  CHECK(guess.draft.parents == (Ids{-1, 0, 1}));
}

void ends_media_and_budgets_cut() {
  const SuffixRules rules{.max_factor = 9.0, .min_prob = 0.0, .max_depth = 8};
  const TokenSet three(10, Ids{3});
  CHECK(guess_suffix(text(), Ids{1, 2}, rules, kNone, kNone, 0).draft.size() == 0);
  CHECK(guess_suffix(text(), Ids{8}, rules, kNone, kNone, 9).draft.size() == 0);
  const auto media = guess_suffix(text(), Ids{1, 2}, rules, three, kNone, 9);
  CHECK(media.draft.child(-1, 3) == -1 && media.draft.child(-1, 4) == 0);
  const auto eos = guess_suffix(text(), Ids{1, 2}, rules, kNone, three, 9);
  CHECK(eos.draft.child(eos.draft.child(-1, 3), 5) == -1);
}

void wrong_calls_are_refused() {
  CHECK_REFUSED(require_rules(SuffixRules{.min_prob = 2.0}));
  CHECK_REFUSED(guess_suffix(text(7), Ids{1}, SuffixRules{.max_depth = 8}, kNone, kNone, 9));
}

}  // namespace

int main() {
  what_followed_most_comes_first();
  a_path_follows_the_likeliest_child();
  ends_media_and_budgets_cut();
  wrong_calls_are_refused();
}
