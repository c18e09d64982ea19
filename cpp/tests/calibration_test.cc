// Calibration and cuts: fading once a round, refusals, widths.
#include "calibration.h"

#include <limits>

#include "check.h"

using namespace eyespan;

namespace {

using Ints = std::vector<std::int32_t>;
using Floats = std::vector<float>;

void a_cell_fades_once_a_round() {
  Calibration calibration(1);
  const Ints tokens{7, 8}, parents{-1, -1};
  for (int round = 0; round < 2; ++round) {
    const Weighing out = calibration.weigh(parents, Floats{0.5f, 0.5f}, {});
    CHECK(out.cells[0] == out.cells[1]);
    calibration.learn(tokens, parents, out.depths, out.cells, Ints{8});
  }
  const Weighing out = calibration.weigh(parents, Floats{0.5f, 0.5f}, {});
  CHECK(calibration.offered()[out.cells[0]] == 2.0 * Calibration::kDecay + 2.0);
  CHECK(calibration.accepted()[out.cells[0]] == Calibration::kDecay + 1.0);
}

void what_is_no_tree_is_refused() {
  Calibration calibration(2);
  CHECK_REFUSED(Calibration(0));
  CHECK_REFUSED(calibration.weigh(Ints{0}, {}, {}));
  CHECK_REFUSED(calibration.weigh(Ints{-1}, Floats{0.5f, 0.5f}, {}));
  CHECK_REFUSED(calibration.weigh(Ints{-1}, {}, Ints{-1}));
  CHECK_REFUSED(calibration.learn(Ints{1}, Ints{-1}, Ints{1}, Ints{-1}, Ints{1}));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK_REFUSED(calibration.weigh(Ints{-1}, Floats{nan}, {}));
  CHECK(calibration.weigh(Ints{-1}, Floats{-1.0f}, Ints{9}).chances[0] == 0.0);
}

void the_widest_row_sets_the_width() {
  const std::vector<double> first{0.9, 0.2, 0.8}, second{0.0}, costs{10.0, 11.0, 12.0, 30.0};
  const CutRules rules{0.2, 127, 0.0, 0.03};  // two rows, ten milliseconds: plain decoding's price
  const auto cuts = best_cuts({first, second}, costs, rules);
  CHECK((cuts[0] == Ints{0, 2}));
  CHECK(cuts[1].empty());
  CHECK_REFUSED(best_cuts({first}, std::vector<double>{10.0, 11.0}, rules));
  CHECK(best_cuts({}, costs, rules).empty());
}

void time_that_is_worth_more_is_spent_on_surer_nodes() {
  const std::vector<double> chances{0.9, 0.3, 0.3}, costs{10.0, 11.0, 12.0, 13.0};
  const auto sent = [&](double price, double worth, double margin) {
    return best_cuts({chances}, costs, CutRules{price, 127, worth, margin})[0].size();
  };
  CHECK(sent(0.1, 0.0, 0.0) == 3);
  CHECK(sent(0.4, 0.0, 0.0) == 1);
  CHECK(sent(1.0, 0.0, 0.0) == 0);
  CHECK(sent(0.4, 0.15, 0.0) == 3);
  CHECK(sent(0.4, 0.0, 0.6) == 0);
}

}  // namespace

int main() {
  a_cell_fades_once_a_round();
  what_is_no_tree_is_refused();
  the_widest_row_sets_the_width();
  time_that_is_worth_more_is_spent_on_surer_nodes();
}
