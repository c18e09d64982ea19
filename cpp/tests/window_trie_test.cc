// Lookahead's windows under random growth and squeezes, and the tree that is read from them.
#include "window_trie.h"

#include <random>

#include "check.h"
#include "lookahead_draft.h"

using namespace eyespan;

namespace {

using Ids = std::vector<std::int32_t>;

const TokenSet kNone(10, {});
const TokenSet kMedia(10, Ids{9});

void windows_hold_no_media_and_no_end() {
  WindowTrie trie(3, 99);
  trie.add_windows(Ids{1, 2, 3, 4, 5, 9, 6, 7, 8}, 9, kMedia, TokenSet(10, Ids{7}));
  CHECK(trie.check_integrity().empty());
  const auto two = trie.find(trie.trie(1), 2);
  CHECK(trie.count(two) == 1.0);
  CHECK(trie.find(trie.find(trie.find(two, 3), 4), 5) == WindowTrie::kNone);
  CHECK(trie.trie(5) == WindowTrie::kNone && trie.trie(6) == WindowTrie::kNone);
  CHECK(trie.trie(9) == WindowTrie::kNone && trie.trie(7) == WindowTrie::kNone);
}

void random_growth_keeps_every_rule() {
  std::mt19937 random(1);
  WindowTrie trie(4, 200, TrieLimits{.trie_nodes = 10, .touched_tries = 5});
  for (int i = 0; i < 500; ++i) {
    Ids text(random() % 9);
    for (auto& token : text) token = static_cast<std::int32_t>(random() % 10);
    trie.add_windows(text, text.size(), kMedia, kNone);
    if (random() % 3 == 0) trie.end_request();
    CHECK(trie.size() <= 200);
    CHECK(trie.check_integrity().empty());
  }
}

void listed_nodes_make_the_same_trie() {
  std::mt19937 random(2);
  const TrieLimits limits{.trie_nodes = 10, .touched_tries = 5};
  WindowTrie trie(4, 200, limits);
  for (int i = 0; i < 60; ++i) {
    Ids text(random() % 9);
    for (auto& token : text) token = static_cast<std::int32_t>(random() % 10);
    trie.add_windows(text, text.size(), kMedia, kNone);
  }
  const auto nodes = trie.list();
  WindowTrie other(4, 200, limits);
  other.add_windows(Ids{7, 8}, 1, kNone, kNone);
  other.restore(nodes.tokens, nodes.parents, nodes.counts, nodes.touched);
  const auto again = other.list();
  CHECK(again.tokens == nodes.tokens && again.parents == nodes.parents);
  CHECK(again.counts == nodes.counts && again.touched == nodes.touched);
  trie.end_request();
  other.end_request();
  CHECK(other.list().tokens == trie.list().tokens && other.list().counts == trie.list().counts);
}

void listed_nodes_that_are_no_trie_change_nothing() {
  WindowTrie trie(2, 99);
  trie.add_windows(Ids{1, 2, 3}, 1, kNone, kNone);
  const auto refused = [&](Ids tokens, Ids parents, std::vector<float> counts) {
    const std::vector<std::uint8_t> touched(tokens.size(), 0);
    bool threw = false;
    try {
      trie.restore(tokens, parents, counts, touched);
    } catch (const std::invalid_argument&) {
      threw = true;
    }
    return threw && trie.size() == 3 && trie.check_integrity().empty();
  };
  CHECK(refused({1}, {-1}, {0}));                          // a trie without nodes
  CHECK(refused({1, 2}, {-1, 1}, {0, 1}));                 // its own parent
  CHECK(refused({1, 2, 2}, {-1, 0, 0}, {0, 1, 1}));        // twice
  CHECK(refused({1, 2, 3}, {-1, 0, 1}, {0, 1, 2}));        // counts more than its parent
  CHECK(refused({1, 2, 3, 4}, {-1, 0, 1, 2}, {0, 1, 1, 1}));  // too long
  CHECK(refused({1, 2}, {-1, 0}, {0, 1e9f}));
  CHECK(refused({1, -2}, {-1, 0}, {0, 1}));
  CHECK(refused({1, 2}, {-1, 0}, {0}));
}

void a_squeeze_drops_what_was_seen_once() {
  WindowTrie trie(2, 99, TrieLimits{.trie_nodes = 2, .touched_tries = 1});
  for (int i = 0; i < 3; ++i) trie.add_windows(Ids{1, 2, 3}, 1, kNone, kNone);
  trie.add_windows(Ids{1, 4}, 1, kNone, kNone);
  trie.add_windows(Ids{5, 6}, 1, kNone, kNone);
  trie.end_request();
  CHECK(trie.count(trie.find(trie.trie(1), 2)) == 1.5);
  CHECK(trie.find(trie.trie(1), 4) == WindowTrie::kNone);
  CHECK(trie.count(trie.find(trie.trie(5), 6)) == 1.0);  // a small trie is left alone
}

void a_draft_reads_both_tries_as_one() {
  WindowTrie input(12, 99), output(12, 99);
  input.add_windows(Ids{1, 2}, 1, kNone, kNone);
  input.add_windows(Ids{1, 3}, 1, kNone, kNone);
  output.add_windows(Ids{1, 3, 4}, 1, kNone, kNone);
  const auto draft = lookahead(input, output, Ids{0, 1}, LookaheadRules{}, kNone, 63);
  CHECK(draft.tokens == (Ids{3, 4, 2}));
  CHECK(draft.parents == (Ids{-1, 0, -1}));
  CHECK(lookahead(input, output, Ids{0, 1}, LookaheadRules{}, kNone, 1).tokens == Ids{3});
  CHECK(lookahead(input, output, Ids{8}, LookaheadRules{}, kNone, 63).size() == 0);
}

void wrong_calls_are_refused() {
  CHECK_REFUSED(WindowTrie(0, 99));
  CHECK_REFUSED(WindowTrie(12, 20));
  CHECK_REFUSED(require_rules(LookaheadRules{.nodes = 1}));
}

}  // namespace

int main() {
  windows_hold_no_media_and_no_end();
  random_growth_keeps_every_rule();
  listed_nodes_make_the_same_trie();
  listed_nodes_that_are_no_trie_change_nothing();
  a_squeeze_drops_what_was_seen_once();
  a_draft_reads_both_tries_as_one();
  wrong_calls_are_refused();
}
