// The six fusion rules on rows worked out by hand.
#include "fusion.h"

#include <cmath>

#include "check.h"

using namespace eyespan;

namespace {

Row row(std::vector<std::int32_t> ids, std::vector<float> probs, float confidence) {
  Row out{{}, confidence};
  out.best.ids.fill(-1);
  std::copy(ids.begin(), ids.end(), out.best.ids.begin());
  std::copy(probs.begin(), probs.end(), out.best.probs.begin());
  return out;
}

RowView view(const Row& row) { return {&row.best, row.confidence}; }

bool near(double a, double b) { return std::abs(a - b) < 1e-12; }

const Priors kPriors{0.70, 0.20, 0.10};
const Row kSpecific = row({1, 2}, {0.5f, 0.5f}, 0.5f);
const Row kGeneral = row({3, 1}, {0.75f, 0.25f}, 1.0f);
const std::array<RowView, 2> kBoth{view(kSpecific), view(kGeneral)};

void one_row_is_used_as_it_is() {
  const Candidates c = fuse(std::span(kBoth).first(1), Fusion::entropy, kPriors);
  CHECK(c.count == 2 && c.ids[0] == 1 && c.probs[0] == 0.5);
  CHECK(fuse({}, Fusion::entropy, kPriors).count == 0);
}

void weights_follow_the_rule() {
  // entropy: 0.7 x 0.5 and 0.2 x 1 -> 7/11 and 4/11.
  Candidates c = fuse(kBoth, Fusion::entropy, kPriors);
  CHECK(c.count == 3 && c.ids[0] == 1 && c.ids[1] == 2 && c.ids[2] == 3);
  CHECK(near(c.probs[0], 4.5 / 11) && near(c.probs[1], 3.5 / 11) && near(c.probs[2], 3.0 / 11));
  // fixed priors: 7/9 and 2/9.
  c = fuse(kBoth, Fusion::fixed_prior, kPriors);
  CHECK(near(c.probs[0], 4.0 / 9) && near(c.probs[1], 3.5 / 9) && near(c.probs[2], 1.5 / 9));
  // no priors: 1/3 and 2/3, so that 3 leads.
  c = fuse(kBoth, Fusion::no_prior, kPriors);
  CHECK(c.ids[0] == 3 && near(c.probs[0], 0.5) && c.ids[1] == 1 && near(c.probs[1], 1.0 / 3));
  // uniform: halves; 1 and 3 tie at 3/8 and keep the order in which they are seen.
  c = fuse(kBoth, Fusion::uniform, kPriors);
  CHECK(c.ids[0] == 1 && c.ids[1] == 3 && c.probs[0] == c.probs[1] && c.ids[2] == 2);
  c = fuse(kBoth, Fusion::gate, kPriors);
  CHECK(c.count == 2 && c.ids[0] == 3);
  c = fuse(kBoth, Fusion::backoff, kPriors);
  CHECK(c.count == 2 && c.ids[0] == 1);
}

void an_equally_confident_gate_takes_the_more_specific() {
  const Row other = row({8}, {1.0f}, 0.5f);
  const std::array<RowView, 2> rows{view(kSpecific), view(other)};
  CHECK(fuse(rows, Fusion::gate, kPriors).ids[0] == 1);
}

void the_eight_heaviest_stay_and_sum_to_one() {
  const std::vector<float> eighths(8, 0.125f);
  const Row a = row({0, 1, 2, 3, 4, 5, 6, 7}, eighths, 0.125f);
  const Row b = row({7, 8, 9, 10, 11, 12, 13, 14}, eighths, 0.125f);
  const std::array<RowView, 2> rows{view(a), view(b)};
  const Candidates c = fuse(rows, Fusion::uniform, kPriors);
  CHECK(c.count == 8 && c.ids[0] == 7);
  for (int i = 1; i < 8; ++i) CHECK(c.ids[i] == i - 1);
  double total = 0.0;
  for (int i = 0; i < 8; ++i) total += c.probs[i];
  CHECK(near(total, 1.0));
}

}  // namespace

int main() {
  one_row_is_used_as_it_is();
  weights_follow_the_rule();
  an_equally_confident_gate_takes_the_more_specific();
  the_eight_heaviest_stay_and_sum_to_one();
}
