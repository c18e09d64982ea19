// Packing: order, ancestors past the first 64 nodes, refusals.
#include "packing.h"

#include <limits>

#include "check.h"

using namespace eyespan;

namespace {

using Ints = std::vector<std::int32_t>;

void the_best_chain_is_contiguous() {
  const Packed packed = pack(Ints{10, 11, 12, 13}, Ints{-1, -1, 1, 0},
                             std::vector<float>{0.25f, 0.5f, 0.125f, 0.25f}, 9);
  CHECK(packed.tokens == (Ints{9, 11, 12, 10, 13}));
  CHECK(packed.parents == (Ints{-1, 0, 1, 0, 3}));
  CHECK(packed.depths == (Ints{0, 1, 2, 1, 2}));
  CHECK(packed.order == (Ints{1, 2, 0, 3}));
  CHECK((packed.ancestors[2] == AncestorSet{0b111, 0}));
  CHECK((packed.ancestors[4] == AncestorSet{0b11001, 0}));
}

void a_chain_of_127_fills_both_words() {
  Ints tokens(127, 1), parents(127);
  for (std::int32_t i = 0; i < 127; ++i) parents[i] = i - 1;
  const Packed packed = pack(tokens, parents, {}, 0);
  CHECK(packed.tokens.size() == 128);
  const std::uint64_t all = ~std::uint64_t{0};
  CHECK((packed.ancestors[127] == AncestorSet{all, all}));
  CHECK((packed.ancestors[64] == AncestorSet{all, 1}));
}

void malformed_trees_are_refused() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK_REFUSED(pack(Ints{1}, Ints{0}, {}, 0));
  CHECK_REFUSED(pack(Ints{1}, Ints{-2}, {}, 0));
  CHECK_REFUSED(pack(Ints{1, 2}, Ints{-1}, {}, 0));
  CHECK_REFUSED(pack(Ints{1}, Ints{-1}, std::vector<float>{nan}, 0));
  CHECK_REFUSED(pack(Ints(128, 1), Ints(128, -1), {}, 0));
}

}  // namespace

int main() {
  the_best_chain_is_contiguous();
  a_chain_of_127_fills_both_words();
  malformed_trees_are_refused();
}
