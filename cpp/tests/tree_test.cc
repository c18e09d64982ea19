// Best-first search, the static tree and the continuation, on a memory that fits on a hand.
#include <algorithm>
#include <string>

#include "check.h"
#include "propose.h"
#include "static_tree.h"

using namespace eyespan;

namespace {

// U alone, tokens 0 to 3: 0 -> 1 (3/4) or 2 (1/4); 1 -> 0 or 2, even; 2 -> 3; 3 -> 0.
struct World {
  RowMap u{1, 16};
  Memory memory{&u, nullptr, nullptr};
  TokenSet media{8, {}}, eos{8, {}};
  ProposeRules rules{
      SearchRules{Fusion::entropy, {0.7, 0.2, 0.1}, DepthPriors(std::array{0.5}), 8, 10}, {}, false};

  World() {
    const auto put = [&](std::uint64_t key, std::vector<std::int32_t> ids, std::vector<float> p) {
      Row row{{}, 1.0f};
      row.best.ids.fill(-1);
      std::copy(ids.begin(), ids.end(), row.best.ids.begin());
      std::copy(p.begin(), p.end(), row.best.probs.begin());
      u.put(key, row);
    };
    put(0, {1, 2}, {0.75f, 0.25f});
    put(1, {0, 2}, {0.5f, 0.5f});
    put(2, {3}, {1.0f});
    put(3, {0}, {1.0f});
  }

  Draft run(std::int32_t root, int budget, std::vector<std::int32_t> chain = {}) const {
    const std::array history{root};
    const SearchGround ground{memory, Context::after(history, media), media, eos, {}};
    return propose(ground, rules, budget, Continuation{chain, 0.5});
  }
};

std::string paths(const Draft& draft) {
  std::vector<std::string> all;
  std::string out;
  for (std::size_t i = 0; i < draft.size(); ++i) {
    const std::string above = draft.parents[i] < 0 ? "" : all[draft.parents[i]];
    all.push_back(above + std::to_string(draft.tokens[i]));
    out += (out.empty() ? "" : " ") + all.back();
  }
  return out;
}

void the_likeliest_paths_come_first() {
  World world;
  // 3/8; then 1/8 for "2" before the two of 3/32, whose tie goes to the smaller rank path; then the
  // single child of "2", 1/16.
  Draft draft = world.run(0, 5);
  CHECK(paths(draft) == "1 2 10 12 23");
  CHECK(draft.scores[0] == 0.375 && draft.scores[3] == 0.09375 && draft.scores[4] == 0.0625);
  CHECK(draft.check_integrity().empty());
  CHECK(world.run(0, 0).size() == 0 && world.run(7, 9).size() == 0);

  world.rules.search.depth = 1;
  CHECK(paths(world.run(0, 9)) == "1 2");
  world.rules.search.width = 1;
  CHECK(paths(world.run(0, 9)) == "1");
}

void ends_have_no_children_and_media_are_left_out() {
  World world;
  world.eos = TokenSet(8, std::vector<std::int32_t>{1});
  CHECK(paths(world.run(0, 3)) == "1 2 23");
  world.media = TokenSet(8, std::vector<std::int32_t>{1});
  const Draft draft = world.run(0, 2);
  CHECK(paths(draft) == "2 23" && draft.scores[0] == 0.125);  // not renormalised
}

void a_shape_is_filled_level_by_level() {
  World world;
  CHECK(token_recycling_shape().size() == 81);
  world.rules.shape = {2, 2, 1, 0, 1, 0, 0};  // paths of ranks 0 1 00 01 10 010
  CHECK(paths(world.run(0, 9)) == "1 2 10 12 23 123");
  CHECK(paths(world.run(0, 4)) == "1 2 10 12");
  CHECK(paths(world.run(2, 9)) == "3 30");  // places without a candidate stay empty
  CHECK_REFUSED(require_shape(std::array{2, 0}));
  CHECK_REFUSED(require_shape(std::array{0, 0}));
}

void a_continuation_shares_equal_children() {
  World world;
  Draft draft = world.run(0, 3, {1, 0, 5, 6});
  CHECK(paths(draft) == "1 2 10 105 1056");
  CHECK(draft.origins == (std::vector<std::int32_t>{0, 0, 0, 1, 1}));
  CHECK(draft.scores[3] == draft.scores[2] * 0.25);  // eta 1/2, mass 1/2

  world.rules.suffix_inside_budget = true;
  CHECK(paths(world.run(0, 3, {1, 0, 5, 6})) == "1 10 105");
  CHECK(paths(world.run(0, 3, {2, 5})) == "1 2 25");
  CHECK(paths(world.run(0, 2, {5, 6, 7})) == "5 56");

  world.eos = TokenSet(8, std::vector<std::int32_t>{5});
  CHECK(paths(world.run(0, 3, {1, 5, 6})) == "1 2 15");
  world.rules.suffix_inside_budget = false;
  CHECK_REFUSED(world.run(0, 127, {1}));
}

}  // namespace

int main() {
  the_likeliest_paths_come_first();
  ends_have_no_children_and_media_are_left_out();
  a_shape_is_filled_level_by_level();
  a_continuation_shares_equal_children();
}
