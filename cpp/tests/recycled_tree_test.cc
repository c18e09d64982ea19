// Token Recycling's tree from a matrix of 16 tokens.
#include "recycled_tree.h"

#include "check.h"

using namespace eyespan;

namespace {

using Ints = std::vector<std::int32_t>;

// Token t is followed by t + 1, t + 2, ..., t + 8 (mod 16), but nothing is known behind token 3.
Ints matrix() {
  Ints rows(16 * 8, 0);
  for (std::int32_t t = 0; t < 16; ++t) {
    for (std::int32_t r = 0; r < 8 && t != 3; ++r) rows[8 * t + r] = (t + 1 + r) % 16;
  }
  return rows;
}

const TokenSet kNoMedia(16, {});

void the_tree_is_read_breadth_first() {
  const RecycledTree tree = recycled_tree(matrix(), 0, kNoMedia, 80);
  CHECK(tree.tokens.size() == 80);
  CHECK(Ints(tree.tokens.begin(), tree.tokens.begin() + 10) ==
        (Ints{1, 2, 3, 4, 5, 6, 7, 8, 2, 3}));
  CHECK(tree.parents[7] == -1 && tree.parents[8] == 0 && tree.parents[16] == 1);
  CHECK(tree.scores[0] == 0.5f && tree.scores[2] == 0.125f && tree.scores[9] == 0.125f);
  const RecycledTree part = recycled_tree(matrix(), 0, kNoMedia, 9);
  CHECK(part.tokens == Ints(tree.tokens.begin(), tree.tokens.begin() + 9));
}

void what_was_never_written_promises_nothing() {
  const RecycledTree tree = recycled_tree(matrix(), 3, kNoMedia, 80);
  CHECK(Ints(tree.tokens.begin(), tree.tokens.begin() + 8) == Ints(8, 0));
  CHECK(tree.scores == std::vector<float>(tree.scores.size(), 0.0f));
}

void media_are_left_out_with_what_hangs_below() {
  const Ints one{1};
  const RecycledTree tree = recycled_tree(matrix(), 0, TokenSet(16, one), 9);
  CHECK(tree.tokens == (Ints{2, 3, 4, 5, 6, 7, 8}));  // place 9 hangs below the token left out
  CHECK(recycled_tree(matrix(), 1, TokenSet(16, one), 80).tokens.empty());
  CHECK(recycled_tree(matrix(), 99, kNoMedia, 80).tokens.empty());
  CHECK(recycled_tree(matrix(), 0, kNoMedia, 0).tokens.empty());
}

}  // namespace

int main() {
  the_tree_is_read_breadth_first();
  what_was_never_written_promises_nothing();
  media_are_left_out_with_what_hangs_below();
}
